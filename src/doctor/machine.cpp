#include "src/doctor/machine.h"

#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "src/base/aligned_memory.h"
#include "src/base/units.h"
#include "terrace/error.h"

namespace terrace {
namespace {

constexpr int kCapIpcLock = 14;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What follows "name" and a colon in lines such as "model name\t: X".
std::string field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(name)) continue;
    const auto value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string limit_text(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? format_bytes(limit) : fmt::format("{}", limit);
}

// The bytes a control group allows this process; nothing when there is no limit (version 1 says so by a huge
// number).
std::optional<std::uint64_t> group_limit_bytes() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::uint64_t bytes = 0;
    std::ifstream file(path);
    if (file >> bytes && bytes < (std::uint64_t{1} << 60)) return bytes;
  }
  return std::nullopt;
}

}  // namespace

std::string processor_name() {
  const std::string name = field(read_text("/proc/cpuinfo"), "model name");
  return name.empty() ? "unknown" : name;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string processor_features() {
  std::string text;
  const auto add = [&text](bool present, const char* name) {
    if (present) text += fmt::format("{}{}", text.empty() ? "" : " ", name);
  };
#if defined(__x86_64__)
  __builtin_cpu_init();
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512dq"), "avx512dq");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512bf16"), "avx512-bf16");
  const std::string flags = field(read_text("/proc/cpuinfo"), "flags");
  add(flags.find(" amx_bf16") != std::string::npos, "amx-bf16");
#endif
  return text.empty() ? "none of avx2, fma, avx512" : text;
}

std::optional<std::uint64_t> meminfo_bytes(const std::string& text, const std::string& name) {
  const std::string value = field(text, name + ":");
  if (value.empty()) return std::nullopt;
  return std::strtoull(value.c_str(), nullptr, 10) * kKiB;
}

std::string memory_facts() {
  const std::string text = read_text("/proc/meminfo");
  const auto total = meminfo_bytes(text, "MemTotal");
  const auto available = meminfo_bytes(text, "MemAvailable");
  if (!total || !available) return "unknown: /proc/meminfo cannot be read";
  std::string facts = fmt::format("{}, {} available", format_bytes(*total), format_bytes(*available));
  if (const auto limit = group_limit_bytes(); limit && *limit < *total) {
    facts += fmt::format(", control group allows {}", format_bytes(*limit));
  }
  return facts;
}

std::string lock_limit_facts() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  const std::string capabilities = field(read_text("/proc/self/status"), "CapEff");
  const bool may_exceed = (std::strtoull(capabilities.c_str(), nullptr, 16) >> kCapIpcLock & 1) != 0;
  const std::string text = limit_text(limit.rlim_cur, true);
  if (limit.rlim_cur == RLIM_INFINITY) return text;
  return text + (may_exceed ? ", which this user may exceed"
                            : "; beyond it memory stays unlocked (raise it with ulimit -l)");
}

std::string file_limit_facts() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "unknown";
  return fmt::format("{} (at most {})", limit_text(limit.rlim_cur, false), limit_text(limit.rlim_max, false));
}

std::string huge_page_facts() {
  const std::string modes = read_text("/sys/kernel/mm/transparent_hugepage/enabled");
  const auto open = modes.find('[');
  const auto close = modes.find(']');
  if (open == std::string::npos || close == std::string::npos)
    return "not in this kernel: I/O will be slower";
  const std::string mode = modes.substr(open + 1, close - open - 1);
  if (mode == "never")
    return "never: I/O will be slower; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  try {  // what the kernel says is one thing, what it does another
    AlignedMemory memory(2 * kHugePageBytes, "the doctor's look at huge pages");
    memory.data()[0] = std::byte{1};
    return mode + (memory.huge() ? ", advice accepted" : ", but the kernel refuses the advice");
  } catch (const Error& error) {
    return mode + ", but " + error.what();
  }
}

std::string kernel_facts() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  return fmt::format("{} {} {}", names.sysname, names.release, names.machine);
}

std::string mount_of(const std::string& mounts, const std::string& path) {
  std::istringstream lines(mounts);
  std::string best;
  std::size_t best_length = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string device, point, type;
    if (!(fields >> device >> point >> type)) continue;
    const bool holds = point == "/" || path == point || path.starts_with(point + "/");
    if (holds && point.size() >= best_length) {  // of equals the later one lies on top
      best = type + " on " + device;
      best_length = point.size();
    }
  }
  return best.empty() ? "unknown" : best;
}

PathFacts path_facts(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code status;
  fs::path place = fs::absolute(path, status).lexically_normal();
  while (!fs::exists(place, status) && place.has_parent_path() && place != place.parent_path()) {
    place = place.parent_path();
  }
  if (!fs::is_directory(place, status)) place = place.parent_path();
  PathFacts facts;
  facts.existing = fs::weakly_canonical(place, status).string();
  facts.file_system = mount_of(read_text("/proc/self/mounts"), facts.existing);
  struct statvfs space {};
  if (statvfs(facts.existing.c_str(), &space) == 0)
    facts.free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  return facts;
}

}  // namespace terrace
