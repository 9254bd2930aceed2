#include "terrace/error.h"

namespace terrace {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::not_found:
      return "not found";
    case ErrorCode::does_not_fit:
      return "does not fit";
    case ErrorCode::io_failed:
      return "I/O failed";
    case ErrorCode::corrupt:
      return "corrupt";
    case ErrorCode::busy:
      return "busy";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace terrace
