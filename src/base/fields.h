// One description of a settings struct. A struct gives
//   template <class Self, class Visitor>
//   static void Fields(Self& self, Visitor&& visit) {
//     visit("n_layer", self.n_layer, "number of blocks");
//   }
// and flags, TOML, JSON, help, comparison and documentation are visitors of it. Field types are
// bool, int64_t, double, std::string, vectors of the last two, and enums that have
//   std::span<const EnumName<E>> EnumNames(E)   found by argument-dependent lookup.
#pragma once

#include <span>
#include <string_view>

namespace heed {

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};

// The name of an enum's value; "?" when it has none.
template <class E>
std::string_view NameOf(E value) {
  for (const EnumName<E>& entry : EnumNames(E{})) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

// Sets `value` from its name; false when there is no such name.
template <class E>
bool ValueOf(std::string_view name, E* value) {
  for (const EnumName<E>& entry : EnumNames(E{})) {
    if (entry.name == name) {
      *value = entry.value;
      return true;
    }
  }
  return false;
}

}  // namespace heed
