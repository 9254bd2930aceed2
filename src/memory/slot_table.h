// Slots of one program in the arenas, and the leases operations hold on them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/memory/arenas.h"
#include "src/plan/program.h"

namespace terrace {

class SlotTable;

// Holds one operation's access to a range of a slot; released in the destructor. Move-only. Bytes whose last
// access of the slot's interval is released are free (and poisoned where the table was told to).
class Lease {
 public:
  Lease(SlotTable& table, const Access& access);
  ~Lease();
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&&) = delete;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::byte* data() const { return data_; }

 private:
  SlotTable* table_;
  Access access_;
  std::byte* data_;
};

// Thread contract: leases may be taken and released from any thread. Nothing is evicted: an operation that
// reuses a slot's bytes waits for the operations that held it, as the program says.
class SlotTable {
 public:
  // `poison`: fill bytes with 0xFF (NaN in every dtype) once they are free; for tests.
  SlotTable(const StepProgram& program, const Arenas& arenas, bool poison);
  void reset();  // before each run of the program

  std::byte* data(SlotId slot) const;  // null for nvme

 private:
  friend class Lease;
  // A stretch of a slot between two borders of accesses: the slot's bytes from `begin` to the next part.
  struct Part {
    std::uint64_t begin = 0;
    std::uint32_t accesses = 0;
  };

  void release(const Access& access);

  const StepProgram& program_;
  const Arenas& arenas_;
  bool poison_;
  // Only where poisoning: the parts of all slots, one after another; where each slot's begin; accesses still
  // to come.
  std::vector<Part> parts_;
  std::vector<std::size_t> first_part_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> remaining_;
};

}  // namespace terrace
