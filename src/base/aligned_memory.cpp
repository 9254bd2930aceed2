#include "src/base/aligned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "src/base/fail.h"
#include "src/base/parallel_for.h"
#include "src/base/process_memory.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kPieceBytes = 2 * kHugePageBytes;  // that is touched or locked at once

}  // namespace

std::size_t AlignedMemory::mapped_bytes_of(std::size_t bytes) {
  return round_up(bytes, bytes < kHugeTailBytes ? kPageBytes : kHugePageBytes);
}

AlignedMemory::AlignedMemory(std::size_t bytes, const std::string& what)
    : bytes_(round_up(bytes, kPageBytes)), mapped_bytes_(mapped_bytes_of(bytes)) {
  if (bytes_ == 0) return;
  const std::size_t wanted = mapped_bytes_ + kHugePageBytes;
  void* raw =
      ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    fail(ErrorCode::does_not_fit, "cannot map {} of memory for {}: {}", format_bytes(bytes_), what,
         std::strerror(errno));
  }
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = round_up(start, kHugePageBytes);
  if (aligned > start) ::munmap(raw, aligned - start);
  const std::uintptr_t tail = aligned + mapped_bytes_;
  if (start + wanted > tail) ::munmap(reinterpret_cast<void*>(tail), start + wanted - tail);
  data_ = reinterpret_cast<std::byte*>(aligned);
  const std::size_t whole = mapped_bytes_ - mapped_bytes_ % kHugePageBytes;
  huge_ = whole == 0 || (::madvise(data_, whole, MADV_HUGEPAGE) == 0 && huge_page_support().advised);
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) ::munmap(data_, mapped_bytes_);
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept {
  *this = std::move(other);
}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(huge_, other.huge_);
  std::swap(locked_bytes_, other.locked_bytes_);
  return *this;
}

std::size_t AlignedMemory::huge_bytes() const {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/smaps", "re"),
                                                             &std::fclose);
  if (!file) return 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(data_);
  std::size_t huge = 0;
  bool ours = false;
  char line[512];
  while (std::fgets(line, sizeof(line), file.get()) != nullptr) {
    std::uintptr_t from = 0, to = 0;
    std::size_t kilobytes = 0;
    if (std::sscanf(line, "%lx-%lx ", &from, &to) == 2) {
      ours = from < begin + mapped_bytes_ && to > begin;
    } else if (ours && std::sscanf(line, "AnonHugePages: %zu kB", &kilobytes) == 1) {
      huge += kilobytes * kKiB;
    }
  }
  return std::min(huge, mapped_bytes_);  // a neighbour may share the mapping
}

int AlignedMemory::lock() {
  parallel_for(div_up(bytes_, kPieceBytes), [this](std::size_t piece) {
    const std::size_t end = std::min(bytes_, (piece + 1) * kPieceBytes);
    for (std::size_t at = piece * kPieceBytes; at < end; at += kPageBytes) data_[at] = std::byte{0};
  });
  while (locked_bytes_ < bytes_) {
    const std::size_t piece = std::min(kPieceBytes, bytes_ - locked_bytes_);
    if (::mlock(data_ + locked_bytes_, piece) != 0) return errno;
    locked_bytes_ += piece;
  }
  return 0;
}

}  // namespace terrace
