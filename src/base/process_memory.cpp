#include "src/base/process_memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <span>
#include <string_view>

#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {
namespace {

// The whole of a small file; empty when it cannot be read. No heap: reading must not change what is read.
std::string_view read_small(const char* path, std::span<char> buffer) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::size_t have = 0;
  while (have < buffer.size()) {
    const ssize_t got = ::read(fd, buffer.data() + have, buffer.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  ::close(fd);
  return {buffer.data(), have};
}

// The number of the line "NAME:   123 kB" or "NAME:  7"; 0 where there is none.
std::uint64_t number_of(std::string_view status, std::string_view name) {
  std::size_t at = status.find(name);
  if (at == std::string_view::npos) return 0;
  at = status.find_first_of("0123456789", at + name.size());
  std::uint64_t number = 0;
  if (at != std::string_view::npos)
    std::from_chars(status.data() + at, status.data() + status.size(), number);
  return number;
}

}  // namespace

ProcessMemory process_memory() {
  std::array<char, 8192> buffer{};
  const std::string_view status = read_small("/proc/self/status", buffer);
  if (status.empty())
    fail(ErrorCode::io_failed, "/proc/self/status: wanted this process's memory, cannot read it");
  ProcessMemory memory;
  memory.anonymous_bytes = number_of(status, "\nRssAnon:") * kKiB;
  memory.shared_bytes = number_of(status, "\nRssShmem:") * kKiB;
  memory.locked_bytes = number_of(status, "\nVmLck:") * kKiB;
  memory.pinned_bytes = number_of(status, "\nVmPin:") * kKiB;
  memory.threads = number_of(status, "\nThreads:");
  return memory;
}

void PeakMemory::sample() {
  const ProcessMemory now = process_memory();
  // The largest sum, not the sum of the largest.
  if (now.resident_bytes() > peak_.resident_bytes()) {
    peak_.anonymous_bytes = now.anonymous_bytes;
    peak_.shared_bytes = now.shared_bytes;
  }
  peak_.locked_bytes = std::max(peak_.locked_bytes, now.locked_bytes);
  peak_.pinned_bytes = std::max(peak_.pinned_bytes, now.pinned_bytes);
  peak_.threads = std::max(peak_.threads, now.threads);
}

void trim_heap() {
  ::malloc_trim(0);
}

HugePageSupport huge_page_support() {
  constexpr const char* kEnabled = "/sys/kernel/mm/transparent_hugepage/enabled";
  constexpr int kExceptAdvised = 2;  // PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18
  HugePageSupport support;
  std::array<char, 256> buffer{};
  const std::string_view mode = read_small(kEnabled, buffer);
  const int disabled = ::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
  if (mode.empty()) {
    support.why = "this kernel has no transparent huge pages";
  } else if (mode.find("[never]") != std::string_view::npos) {
    support.why = std::string(kEnabled) + " is never: it must be madvise or always";
  } else if (disabled > 0 && (disabled & kExceptAdvised) == 0) {
    support.why = "they are switched off for this process (PR_SET_THP_DISABLE), by what started it";
  } else {
    support.advised = true;
    support.always = disabled <= 0 && mode.find("[always]") != std::string_view::npos;
  }
  return support;
}

}  // namespace terrace
