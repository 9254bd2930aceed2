// What each kind of operation does.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/cast.h"
#include "src/base/fail.h"
#include "src/base/parallel_for.h"
#include "src/optimizer/chunk_update.h"
#include "src/runtime/runtime.h"

namespace terrace {
void Runtime::execute_now(const Op& op, std::vector<Lease>& leases) {
  switch (op.kind) {
    case OpKind::copy_to_device:
    case OpKind::copy_to_host:
      std::memcpy(leases[1].data(), leases[0].data(), op.accesses[0].bytes);
      return;
    case OpKind::forward:
    case OpKind::backward:
    case OpKind::recompute:
      return compute(op, leases);
    case OpKind::accumulate:
    case OpKind::round_sum:
    case OpKind::sum_group:
      return add_up(op, leases);
    case OpKind::fold:
      return fold(op, leases);
    case OpKind::grad_stats:
      return decide();
    case OpKind::update:
    case OpKind::cast_param:
    case OpKind::visit_state:
      return update(op, leases);
    case OpKind::commit:
      return commit();
    case OpKind::all_gather:
      return all_gather(op);
    case OpKind::reduce_scatter:
      return reduce_scatter(op);
    default:
      break;
  }
  // A disk transfer, one at a time: only in adversarial mode.
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr failure;
  start_transfer(op, leases, [&](std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    failure = std::move(error);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
  if (failure) std::rethrow_exception(failure);
}

void Runtime::compute(const Op& op, const std::vector<Lease>& leases) {
  ComputeCall call;
  call.kind = op.kind;
  call.unit = op.unit;
  call.contribution = op.micro_batch;
  for (std::size_t i = 0; i < op.accesses.size(); ++i) {
    call.operand[static_cast<std::size_t>(op.accesses[i].role)] = leases[i].data();
  }
  parts_.executor->run(call);
}

// Sums before the fold: in fp32, in ascending order, rounded once.
void Runtime::add_up(const Op& op, const std::vector<Lease>& leases) {
  const DType dtype = parts_.model->grad_dtype;
  const std::uint64_t element = dtype_bytes(dtype);
  if (op.kind == OpKind::accumulate) {
    const bool first = op.accesses[1].mode == AccessMode::write;
    fold_chunk({leases[0].data(), dtype}, reinterpret_cast<float*>(leases[1].data()),
               op.accesses[0].bytes / element, {first, false}, {});
    return;
  }
  const std::uint64_t numel = op.accesses[1].bytes / element;
  if (op.kind == OpKind::round_sum)
    return round_values(reinterpret_cast<const float*>(leases[0].data()), dtype, numel, leases[1].data());
  sum_gradients({leases[0].data(), dtype}, op.accesses[0].bytes / op.accesses[1].bytes, numel,
                leases[1].data());
}

void Runtime::fold(const Op& op, const std::vector<Lease>& leases) {
  const Chunk& chunk = parts_.plan->chunks[op.chunk];
  const std::uint32_t summands = current_->program.summands;
  const std::span<double> sums{block_sums_.data() + first_block_[op.chunk], chunk.numel / kBlockNumel};
  const GradientView gradient{leases[0].data(), parts_.model->grad_dtype};
  if (summands == 1) {
    if (leases.size() > 1) std::memcpy(leases[1].data(), leases[0].data(), op.accesses[0].bytes);
    chunk_stats(gradient, chunk.numel, sums);
    leave_out(gradient, chunk.numel, frozen_[op.chunk], sums);
  } else {
    const bool last = op.micro_batch + 1 == summands;
    fold_chunk(gradient, reinterpret_cast<float*>(leases[1].data()), chunk.numel, {op.micro_batch == 0, last},
               sums);
    if (last) leave_out({leases[1].data(), DType::f32}, chunk.numel, frozen_[op.chunk], sums);
    if (leases.size() > 2) {  // the rounded sum, for the other replicas
      round_values(reinterpret_cast<const float*>(leases[1].data()), parts_.model->grad_dtype, chunk.numel,
                   leases[2].data());
    }
  }
}

void Runtime::decide() {
  ExactSum sum;  // a block that is not finite has an infinite sum
  for (const double block : block_sums_) sum.add(block);
  if (parts_.groups != nullptr) sum = join_ranks(sum);
  outcome_.verdict = make_verdict(sum, inputs_->clip_norm, inputs_->loss_scale);
}

// Of the step that an update or its write belongs to.
const StepInputs& Runtime::inputs_of(const Op& op) const {
  const bool own = current_->program.updates == UpdateTime::backward && !op.predicated;
  return own || !pending_ ? *inputs_ : pending_->inputs;
}

// update, cast_param and visit_state: all see a chunk's streams.
void Runtime::update(const Op& op, const std::vector<Lease>& leases) {
  const Chunk& chunk = parts_.plan->chunks[op.chunk];
  const StateLayout layout = state_layout(chunk);
  std::array<float*, 3> streams{};
  for (std::size_t s = 0; s < layout.offset_bytes.size(); ++s) {
    streams[s] = reinterpret_cast<float*>(leases[0].data() + layout.offset_bytes[s]);
  }
  std::vector<std::uint64_t>& steps = segment_steps_[op.chunk];
  if (op.kind == OpKind::visit_state) {
    visitor({op.chunk, {streams[0], streams[1], streams[2]}, steps});
    return;
  }
  const DType param_dtype = parts_.model->param_dtype;
  if (op.kind == OpKind::cast_param) {
    round_values(streams[0], param_dtype, chunk.numel, leases[1].data());
    return;
  }
  const UnitShape& unit = parts_.model->units[chunk.unit];
  std::vector<ChunkSegment> segments;
  for (std::size_t s = 0; s < chunk.segments.size(); ++s) {
    const Segment& segment = chunk.segments[s];
    const bool was_touched = touched(chunk.unit, segment.tensor);
    if (was_touched) ++steps[s];
    segments.push_back(
        {segment.offset, segment.numel(), unit.tensors[segment.tensor].group, steps[s], was_touched});
  }
  const GradientSums sums(parts_.plan->ranks.shape(), current_->program.contributions);
  const DType sum_dtype = sums.sum_dtype(*parts_.model);
  update_chunk({streams[0], streams[1], streams[2]}, {streams[0], streams[1], streams[2]},
               {leases[1].data(), sum_dtype}, {leases[2].data(), param_dtype}, chunk.numel, segments,
               inputs_of(op).groups, op.predicated ? pending_->verdict.grad_scale : 1 / inputs_->loss_scale);
}

void Runtime::initialise_state(std::uint32_t chunk, std::byte* state) {
  const StateLayout layout = state_layout(parts_.plan->chunks[chunk]);
  std::memset(state, 0, layout.payload_bytes);
  parts_.initial_master(chunk, reinterpret_cast<float*>(state + layout.offset_bytes[0]));
}

IoTicket Runtime::start_transfer(const Op& op, std::vector<Lease>& leases,
                                 std::function<void(std::exception_ptr)> done) {
  const auto memory = [&](std::size_t access) -> std::span<std::byte> {
    return {leases[access].data(), op.accesses[access].bytes};
  };
  const auto is_scratch = [&](std::size_t access) {
    return parts_.plan->residents.scratch_extent.at(op.accesses[access].slot) != kNone;
  };
  const auto extent = [&](std::size_t access) {
    check(is_scratch(access) && parts_.scratch != nullptr, "{} of a slot without a scratch extent",
          name_of(op.kind));
    return parts_.first_scratch_extent + parts_.plan->residents.scratch_extent[op.accesses[access].slot];
  };
  switch (op.kind) {
    case OpKind::read_state: {
      const std::size_t target = op.accesses.size() - 1;
      if (target == 1 && is_scratch(0)) {  // another rank's chunk: this replica's copy
        return parts_.scratch->read(extent(0), memory(1), IoPriority::prefetch, std::move(done));
      }
      if (parts_.store == nullptr || !parts_.store->written(op.chunk)) {
        initialise_state(op.chunk, leases[target].data());
        done(nullptr);
        return 0;
      }
      segment_steps_[op.chunk] = parts_.store->version(op.chunk).segment_steps;
      return parts_.store->read(op.chunk, memory(target), IoPriority::prefetch, std::move(done));
    }
    case OpKind::write_state: {
      if (is_scratch(1))
        return parts_.scratch->write(extent(1), memory(0), IoPriority::write_back, std::move(done));
      // What lives in memory is written for the commit that follows.
      const bool resident = parts_.plan->placement.optimizer_state[op.chunk] != Tier::nvme;
      const std::uint64_t step = resident ? inputs_->commit.step : inputs_of(op).step;
      return parts_.store->write(op.chunk, memory(0), {step, segment_steps_[op.chunk]},
                                 IoPriority::write_back, std::move(done));
    }
    case OpKind::read_param:
    case OpKind::read_gradient:
    case OpKind::read_activation:
      return parts_.scratch->read(extent(0), memory(1), IoPriority::prefetch, std::move(done));
    case OpKind::write_param:  // the next forward waits for it
      return parts_.scratch->write(extent(1), memory(0), IoPriority::prefetch, std::move(done));
    case OpKind::write_gradient:
    case OpKind::write_activation:
      return parts_.scratch->write(extent(1), memory(0), IoPriority::write_back, std::move(done));
    default:
      fail(ErrorCode::internal, "{} is not a disk transfer", name_of(op.kind));
  }
}

}  // namespace terrace
