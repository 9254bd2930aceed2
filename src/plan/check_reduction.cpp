// Sums that are made before the fold: what they are made of, and that each is made once.
#include <spdlog/fmt/fmt.h>

#include "src/plan/check_data.h"

namespace terrace::check_rules {

// What a chunk's owner folds.
Value DataFlow::summand(std::uint32_t unit, std::uint32_t index) const {
  const bool plain = view_.order() == Reduction::each;
  return {plain ? ValueKind::contribution : ValueKind::summand, unit, index};
}

void DataFlow::accumulate(const Op& op) {
  const std::uint32_t before = op.micro_batch / input_.ranks.ranks;  // of this rank's contributions
  if (!has_form(op, {AccessMode::read, before == 0 ? AccessMode::write : AccessMode::update})) return;
  const std::uint64_t numel = input_.model.units[op.unit].padded_numel();
  const Access& sum = op.accesses[1];
  need(op.accesses[0], "the contribution", {ValueKind::contribution, op.unit, op.micro_batch}, 0,
       numel * grad_bytes_);
  if (program_.slots[sum.slot].item != Item::local_sum) {
    report(Rule::operand, sum.slot,
           fmt::format("{} adds to {}, wanted a local_sum", describe_op(program_, op_),
                       describe_slot(program_, sum.slot)));
  }
  const std::uint64_t bytes = numel * sizeof(float);
  if (before > 0) need(sum, "the local sum so far", {ValueKind::local_sum, op.unit, before}, 0, bytes);
  put(sum, "the local sum", {ValueKind::local_sum, op.unit, before + 1}, 0, bytes);
}

void DataFlow::round_sum(const Op& op) {
  if (!has_form(op, {AccessMode::read, AccessMode::write})) return;
  const std::uint64_t numel = input_.model.units[op.unit].padded_numel();
  need(op.accesses[0], "the local sum", {ValueKind::local_sum, op.unit, view_.own_contributions()}, 0,
       numel * sizeof(float));
  put(op.accesses[1], "the rounded sum", summand(op.unit, input_.ranks.rank), 0, numel * grad_bytes_);
}

void DataFlow::sum_group(const Op& op) {
  if (!has_form(op, {AccessMode::read, AccessMode::write})) return;
  const bool in_replica = view_.order() == Reduction::hierarchical;
  const std::uint32_t first = view_.first_of_round(op.micro_batch);
  const std::uint32_t count = in_replica ? view_.in_replica(first) : view_.in_round(first);
  const Elements& range = in_replica ? view_.shard(op.unit) : view_.own(op.unit);
  const std::uint64_t part = range.numel() * grad_bytes_;
  if (op.accesses[0].bytes != count * part || op.accesses[1].bytes != part) {
    return report(
        Rule::operand, op.accesses[0].slot,
        fmt::format("{} adds {} bytes up to {}, wanted {} contributions of {}", describe_op(program_, op_),
                    op.accesses[0].bytes, op.accesses[1].bytes, count, part));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    Access slice = op.accesses[0];
    slice.offset_bytes += i * part;
    slice.bytes = part;
    need(slice, "a contribution of its group", {ValueKind::contribution, op.unit, op.micro_batch + i},
         range.begin * grad_bytes_, part);
  }
  put(op.accesses[1], "the group's sum", summand(op.unit, view_.summand_of(op.micro_batch)),
      range.begin * grad_bytes_, part);
}

}  // namespace terrace::check_rules
