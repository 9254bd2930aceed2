// The one exception of the library. Thrown when a step cannot go on; expected outcomes are returned instead.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace terrace {

enum class ErrorCode {
  invalid_argument,  // a value, key or file the user gave is not what was wanted
  not_found,         // a path or name does not exist
  does_not_fit,      // a budget, a disk or a limit is too small; the message says what would fit
  io_failed,         // the operating system refused a transfer; path, offset, wanted and got are named
  corrupt,           // data read back is not what was written
  busy,              // another process holds the resource
  unsupported,       // this machine or build cannot do it; the message says what would
  cancelled,         // stopped because something else failed first
  internal           // a broken invariant of our own
};

std::string_view error_code_name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace terrace
