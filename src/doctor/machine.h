// Facts about the machine, read from the kernel. Nothing throws: what cannot be read is said so in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace terrace {

struct PathFacts {
  std::string existing;     // the path, or its nearest parent that exists
  std::string file_system;  // "ext4 on /dev/vda1"
  std::uint64_t free_bytes = 0;
};

std::string processor_name();
int usable_cores();
std::string processor_features();  // those that matter here: "avx2 fma avx512 avx512-bf16"
std::string memory_facts();        // total, available, control-group limit
std::string lock_limit_facts();
std::string file_limit_facts();
std::string huge_page_facts();
std::string kernel_facts();
PathFacts path_facts(const std::string& path);

// The number in bytes after "Name:" in the text of /proc/meminfo.
std::optional<std::uint64_t> meminfo_bytes(const std::string& text, const std::string& name);
// The entry of /proc/self/mounts that holds `path` (absolute): "type on device".
std::string mount_of(const std::string& mounts, const std::string& path);

}  // namespace terrace
