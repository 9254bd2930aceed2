// What this machine offers: what `terrace doctor` prints.
#pragma once

#include <string>
#include <vector>

namespace terrace {

// Aligned lines for people: processor, memory and its limits, I/O, each of `paths` (file system, free space,
// O_DIRECT tried with real I/O), CUDA, library versions. What is missing is said with the reason; nothing
// throws and nothing is left behind.
std::string doctor_report(const std::vector<std::string>& paths);

// Of the program and library, e.g. "0.1.0".
std::string version();

}  // namespace terrace
