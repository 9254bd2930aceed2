// In a file of its own: the compiler must not see new and delete together.
#include "tests/collectives/largest_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest{0};

}  // namespace

void* operator new(std::size_t bytes) {
  std::size_t seen = largest.load();
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace terrace {

std::size_t largest_allocation() {
  return largest;
}

void forget_allocations() {
  largest = 0;
}

}  // namespace terrace
