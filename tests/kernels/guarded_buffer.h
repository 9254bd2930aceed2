// Memory whose last byte lies just before a page that cannot be touched: a read or write past the end is a
// crash.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

namespace terrace {

template <typename T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t numel) : numel_(numel) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t used = (numel * sizeof(T) + page - 1) / page * page;
    mapped_bytes_ = used + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_, page, PROT_NONE) != 0 ||
        mprotect(base_ + page + used, page, PROT_NONE) != 0) {
      std::abort();
    }
    data_ = reinterpret_cast<T*>(base_ + page + used - numel * sizeof(T));
  }
  ~GuardedBuffer() { munmap(base_, mapped_bytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::size_t size() const { return numel_; }

 private:
  std::size_t numel_;
  std::size_t mapped_bytes_ = 0;
  std::byte* base_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace terrace
