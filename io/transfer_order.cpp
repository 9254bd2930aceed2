#include "io/transfer_order.h"

namespace terrace {
namespace {
constexpr int kDemand = static_cast<int>(IoPriority::demand);
constexpr int kWriteBack = static_cast<int>(IoPriority::write_back);
}  // namespace

void TransferOrder::add(IoTicket ticket, IoPriority priority) {
  waiting_[static_cast<int>(priority)].insert(ticket);
}

void TransferOrder::remove(IoTicket ticket) {
  for (auto& waiting : waiting_) waiting.erase(ticket);
}

void TransferOrder::promote(IoTicket ticket) {
  for (int p = kDemand + 1; p < kIoPriorities; ++p) {
    if (waiting_[p].erase(ticket) != 0) waiting_[kDemand].insert(ticket);
  }
}

bool TransferOrder::empty() const {
  return first() == 0;
}

IoTicket TransferOrder::first() const {
  for (const auto& waiting : waiting_) {
    if (!waiting.empty()) return *waiting.begin();
  }
  return 0;
}

int TransferOrder::choose() {
  int top = 0;
  while (top < kIoPriorities && waiting_[top].empty()) ++top;
  if (top >= kWriteBack) return top;
  for (int p = top + 1; p < kIoPriorities; ++p) {
    if (!waiting_[p].empty() && passed_[p] >= kPatience) return p;
  }
  if (!waiting_[kWriteBack].empty()) {
    const std::uint64_t share = top == kDemand ? depth_ / 4 : depth_ / 2;
    std::uint64_t total = 0;
    for (const std::uint32_t n : in_flight_) total += n;
    // In proportion from the first piece on: an idle disk starts with the demanded read.
    if ((in_flight_[kWriteBack] + std::uint64_t{1}) * depth_ <= share * (total + 1)) return kWriteBack;
  }
  return top;
}

IoTicket TransferOrder::start(IoPriority& priority) {
  const int chosen = choose();
  if (chosen == kIoPriorities) return 0;
  passed_[chosen] = 0;
  for (int p = chosen + 1; p < kIoPriorities; ++p) {
    if (!waiting_[p].empty()) ++passed_[p];
  }
  ++in_flight_[chosen];
  priority = static_cast<IoPriority>(chosen);
  return *waiting_[chosen].begin();
}

}  // namespace terrace
