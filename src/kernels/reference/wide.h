// The type that reference loops add up in: double for float, and T itself for double and duals.
#pragma once

#include <utility>

namespace heed::reference {

template <class T>
using Wide = decltype(std::declval<T>() * 1.0);

}  // namespace heed::reference
