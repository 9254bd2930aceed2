#include "src/base/aligned_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {

AlignedMemory::AlignedMemory(std::size_t bytes, const std::string& what) : bytes_(round_up(bytes, 4096)) {
  if (bytes_ == 0) return;
  const std::size_t wanted = round_up(bytes_, kHugePageBytes) + kHugePageBytes;
  void* raw =
      ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    fail(ErrorCode::does_not_fit, "cannot map {} of memory for {}: {}", format_bytes(bytes_), what,
         std::strerror(errno));
  }
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = round_up(start, kHugePageBytes);
  const std::size_t kept = round_up(bytes_, kHugePageBytes);
  if (aligned > start) ::munmap(raw, aligned - start);
  const std::uintptr_t tail = aligned + kept;
  if (start + wanted > tail) ::munmap(reinterpret_cast<void*>(tail), start + wanted - tail);
  data_ = reinterpret_cast<std::byte*>(aligned);
  huge_ = ::madvise(data_, kept, MADV_HUGEPAGE) == 0;
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) ::munmap(data_, round_up(bytes_, kHugePageBytes));
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept {
  *this = std::move(other);
}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(huge_, other.huge_);
  std::swap(locked_, other.locked_);
  return *this;
}

bool AlignedMemory::lock() {
  if (bytes_ == 0) return true;
  for (std::size_t at = 0; at < bytes_; at += 4096) data_[at] = std::byte{0};
  locked_ = ::mlock(data_, bytes_) == 0;
  return locked_;
}

}  // namespace terrace
