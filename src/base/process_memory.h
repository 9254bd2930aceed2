// What the kernel says this process holds, and the most it was seen to hold.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

struct ProcessMemory {
  std::uint64_t anonymous_bytes = 0;  // heap, stacks, arenas; page-locked and registered pages are among them
  std::uint64_t shared_bytes = 0;     // memory files mapped (memfd, tmpfs)
  std::uint64_t locked_bytes = 0;     // by mlock
  std::uint64_t pinned_bytes = 0;     // registered with io_uring or a driver
  std::uint64_t threads = 0;

  // What memory cannot be taken back from without swap: anonymous plus locked, each page once. Pages of files
  // (the program's code and libraries) do not count: the kernel drops them when it needs room.
  std::uint64_t resident_bytes() const { return anonymous_bytes + shared_bytes; }
};

// Of this process, now. The kernel keeps these counters a processor, so a figure may be off by some pages.
// Throws io_failed where /proc is not mounted. Cost: some ten microseconds. Thread-safe.
ProcessMemory process_memory();

// The most that samples have seen. It misses what came and went between two samples; a run samples after
// planning, when its arenas are locked, and at the end of every step, which sees all that stays for a whole
// step but not a library's buffer of a moment. Thread contract: one thread.
class PeakMemory {
 public:
  void sample();
  const ProcessMemory& peak() const { return peak_; }  // each figure's own largest

 private:
  ProcessMemory peak_;
};

// Gives free pages of the heap back to the system. Cost: a few milliseconds.
void trim_heap();

// Whether advice for huge pages has an effect in this process; where not, why, and what would change it.
struct HugePageSupport {
  bool advised = false;  // memory that asks for huge pages may get them
  bool always = false;   // other memory may get them too: a thread's stack, a heap
  std::string why;       // where not advised
};
HugePageSupport huge_page_support();

}  // namespace terrace
