// fail(code, "format {}", ...): throw terrace::Error with a formatted message. check(...) is for our own
// bugs.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "terrace/error.h"

namespace terrace {

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Throws ErrorCode::internal when `condition` is false: a broken invariant is reported, never carried on.
template <typename... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    throw Error(ErrorCode::internal, "internal: " + fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace terrace
