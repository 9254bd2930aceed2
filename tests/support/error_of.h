// What a piece of a test throws, in words.
#pragma once

#include <string>

#include "terrace/error.h"

namespace terrace {

// The error of `body` as "code: message"; empty when it throws none.
template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.what();
  }
  return {};
}

}  // namespace terrace
