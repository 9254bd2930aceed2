// Anonymous memory in huge pages: aligned to 2 MiB and advised before the first touch.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace terrace {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

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

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

  bool huge() const { return huge_; }      // the kernel accepted the huge-page advice
  bool locked() const { return locked_; }  // page-locked by lock()

  // Touches every page, then page-locks the region where the limit allows it; returns false (and stays
  // usable) where not. Cost: the kernel zeroes the whole region.
  bool lock();

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool huge_ = false;
  bool locked_ = false;
};

}  // namespace terrace
