// Anonymous memory in huge pages: aligned to 2 MiB and advised before the first touch.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace terrace {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
// A region of at least this size is in huge pages to its end: up to 2 MiB more than asked for. A smaller one
// has small pages behind its last whole 2 MiB.
inline constexpr std::size_t kHugeTailBytes = 4 * kHugePageBytes;

// A zeroed region of at least `bytes`, aligned to 2 MiB, released in the destructor. Move-only. Thread
// contract: the object belongs to one thread; the bytes are shared as their user likes.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  // Throws does_not_fit with the size wanted and what `what` was for, when the system refuses it.
  AlignedMemory(std::size_t bytes, const std::string& what);
  ~AlignedMemory();
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  // What a region of `bytes` takes when all of it is touched.
  static std::size_t mapped_bytes_of(std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }  // a multiple of 4096
  std::size_t mapped_bytes() const { return mapped_bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

  bool huge() const { return huge_; }  // the kernel took the advice, or the region has no whole huge page
  // How much lies in huge pages now. Cost: the kernel lists the process's mappings, some milliseconds.
  std::size_t huge_bytes() const;

  bool locked() const { return locked_bytes_ == bytes_; }  // all of it, by lock()
  std::size_t locked_bytes() const { return locked_bytes_; }

  // Touches every page (on the threads of parallel_for), then page-locks the region piece by piece as far as
  // the limit allows; returns 0, or the system's error (an errno) where not all of it is locked. What is
  // locked stays locked, the rest stays usable. Cost: the kernel zeroes the whole region.
  int lock();

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t mapped_bytes_ = 0;
  bool huge_ = false;
  std::size_t locked_bytes_ = 0;
};

}  // namespace terrace
