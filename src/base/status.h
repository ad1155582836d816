// Errors are values: what was found, what was expected, where, and what to do about it.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace heed {

enum class ErrorKind {
  kRequest,      // an option, setting or argument is wrong
  kIo,           // the system refused to read or write
  kFormat,       // a file does not hold what its format promises
  kNumeric,      // a number stopped being finite
  kInterrupted,  // the user stopped the work
};

struct Error {
  ErrorKind kind = ErrorKind::kRequest;
  std::string where;     // file, field or option
  std::string found;     // what stood there
  std::string expected;  // what should have stood there; may be empty
  std::string hint;      // what to do; may be empty

  // One line: "WHERE: found FOUND, expected EXPECTED; HINT".
  std::string Message() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> Fail(ErrorKind kind, std::string where, std::string found,
                                  std::string expected = "", std::string hint = "") {
  return tl::make_unexpected(
      Error{kind, std::move(where), std::move(found), std::move(expected), std::move(hint)});
}

inline tl::unexpected<Error> BadRequest(std::string where, std::string found,
                                        std::string expected = "", std::string hint = "") {
  return Fail(ErrorKind::kRequest, std::move(where), std::move(found), std::move(expected),
              std::move(hint));
}

}  // namespace heed

#define HEED_CONCAT_(a, b) a##b
#define HEED_CONCAT(a, b) HEED_CONCAT_(a, b)

// Returns the error of a Status or Result expression to the caller.
#define HEED_TRY(expression)                                           \
  do {                                                                 \
    auto heed_status = (expression);                                   \
    if (!heed_status) return tl::make_unexpected(heed_status.error()); \
  } while (false)

// HEED_ASSIGN(auto x, F()): declares or assigns x, or returns the error.
#define HEED_ASSIGN(target, expression) \
  HEED_ASSIGN_IMPL_(HEED_CONCAT(heed_result_, __LINE__), target, expression)
#define HEED_ASSIGN_IMPL_(result, target, expression)      \
  auto result = (expression);                              \
  if (!result) return tl::make_unexpected(result.error()); \
  target = std::move(*result)
