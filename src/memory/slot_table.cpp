#include "src/memory/slot_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace terrace {

Lease::Lease(SlotTable& table, const Access& access)
    : table_(&table), access_(access), data_(table.data(access.slot)) {
  if (data_ != nullptr) data_ += access.offset_bytes;
}

Lease::~Lease() {
  if (table_ != nullptr) table_->release(access_);
}

Lease::Lease(Lease&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)), access_(other.access_), data_(other.data_) {}

SlotTable::SlotTable(const StepProgram& program, const Arenas& arenas, bool poison)
    : program_(program), arenas_(arenas), poison_(poison) {
  if (!poison) return;
  std::vector<std::vector<Access>> accesses(program.slots.size());
  for (const Op& op : program.ops) {
    for (const Access& access : op.accesses) accesses[access.slot].push_back(access);
  }
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    first_part_.push_back(parts_.size());
    std::vector<std::uint64_t> borders{0};
    for (const Access& access : accesses[id]) {
      borders.push_back(access.offset_bytes);
      borders.push_back(access.offset_bytes + access.bytes);
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (const std::uint64_t begin : borders) {
      Part part{begin, 0};
      for (const Access& access : accesses[id]) {
        if (access.offset_bytes <= begin && begin < access.offset_bytes + access.bytes) ++part.accesses;
      }
      parts_.push_back(part);
    }
  }
  first_part_.push_back(parts_.size());
  remaining_ = std::make_unique<std::atomic<std::uint32_t>[]>(parts_.size());
  reset();
}

void SlotTable::reset() {
  for (std::size_t i = 0; i < parts_.size(); ++i)
    remaining_[i].store(parts_[i].accesses, std::memory_order_relaxed);
}

std::byte* SlotTable::data(SlotId id) const {
  const Slot& slot = program_.slots[id];
  return slot.tier == Tier::nvme ? nullptr : arenas_.data(slot.tier) + slot.offset_bytes;
}

void SlotTable::release(const Access& access) {
  const Slot& slot = program_.slots[access.slot];
  if (!poison_ || slot.resident || slot.carry == Carry::out || slot.tier == Tier::nvme) return;
  const std::uint64_t end = access.offset_bytes + access.bytes;
  for (std::size_t p = first_part_[access.slot]; p < first_part_[access.slot + 1] && parts_[p].begin < end;
       ++p) {
    if (parts_[p].begin < access.offset_bytes) continue;
    if (remaining_[p].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    const std::uint64_t part_end = p + 1 < first_part_[access.slot + 1] ? parts_[p + 1].begin : slot.bytes;
    std::memset(data(access.slot) + parts_[p].begin, 0xFF, part_end - parts_[p].begin);
  }
}

}  // namespace terrace
