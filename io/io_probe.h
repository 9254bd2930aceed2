// What this machine can do for I/O, asked by doing it.
#pragma once

#include <string>

namespace terrace {

struct IoSupport {
  bool available = false;
  std::string detail;  // what works, or why it does not, in words
};

// Sets a ring up and takes it down.
IoSupport probe_io_uring();

// Writes and reads a block of a nameless file in the folder `path` with O_DIRECT. False with the reason in
// *why (may be null). Nothing is left behind.
bool probe_direct_io(const std::string& path, std::string* why);

}  // namespace terrace
