#include "tests/plan/tiny_step.h"

#include <utility>

#include "tests/plan/tiny_layout.h"
#include "tests/plan/tiny_writer.h"

namespace terrace {
namespace {

class Steps : TinyWriter {
 public:
  explicit Steps(const TinyOptions& options) : TinyWriter(options) {}

  TinyStep write() {
    switch (options_.kind) {
      case ProgramKind::train:
      case ProgramKind::train_commit:
        train();
        break;
      case ProgramKind::drain:
        drain();
        break;
      case ProgramKind::eval:
        evaluate();
        break;
      case ProgramKind::materialize:
        materialize();
        break;
      case ProgramKind::commit:
        commit_between();
        break;
      case ProgramKind::visit:
        visit();
        break;
    }
    StepProgram& program = builder_.program;
    place(program, options_.compact);
    derive_waits(program);
    return {program, input_};
  }

 private:
  void train() {
    if (!updates_forward()) open_backward_step();
    for (std::uint32_t k = 0; k < options_.contributions; ++k) {
      micro_batch_ = k;
      outputs_.assign(units(), kNone);
      saved_.assign(units(), kNone);
      SlotId kept = kNone;
      for (std::uint32_t u = 0; u < units(); ++u) {
        if (k == 0 && updates_forward()) update_unit(u);
        if (u + 1 == units()) break;
        forward(u);
        if (u == 0 && options_.activations != Tier::device) kept = offload(outputs_[0]);
      }
      if (k == 0 && updates_forward() && commits()) commit();
      if (k + 1 == options_.contributions && updates_forward()) fetch_ahead();
      for (std::uint32_t u = units(); u-- > 0;) {
        if (u == 1 && kept != kNone) {
          const SlotId back = slot(Tier::device, Item::activation, 0, kNone, shape(0).output_bytes);
          move(builder_.read(to_host(kept, Item::activation)), builder_.write(back), Item::activation);
          outputs_[0] = back;
        }
        backward(u);
        if (k + 1 == options_.contributions && !updates_forward()) update_unit(u);
      }
    }
    micro_batch_ = kNone;
    builder_.add(make(OpKind::grad_stats, Lane::optimizer, kNone, kNone, {}));
  }

  void drain() {
    if (!updates_forward()) return write_pending();
    for (std::uint32_t u = 0; u < units(); ++u) update_unit(u);
  }

  // Without a verdict: the new states that the step before left in carried slots.
  void write_pending() {
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      if (carried_in_[c] != kNone) from_host(carried_in_[c], store_[c], Item::state_chunk, true);
    }
  }

  void open_backward_step() {
    write_pending();
    if (!commits()) return;
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) store_elsewhere(c);
    commit();
  }

  void commit() { builder_.add(make(OpKind::commit, Lane::commit, kNone, kNone, {})); }

  // What a commit needs of a chunk whose state does not live on nvme.
  void store_elsewhere(std::uint32_t c) {
    if (state_home_[c] == store_[c]) return;
    from_host(to_host(state_home_[c], Item::state_chunk), store_[c], Item::state_chunk);
  }

  void fetch_ahead() {
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      if (carried_out_[c] != kNone)
        move(builder_.read(state_home_[c]), builder_.write(carried_out_[c]), Item::state_chunk);
    }
  }

  void update_unit(std::uint32_t unit) {
    const std::uint32_t micro_batch = std::exchange(micro_batch_, kNone);
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      if (input_.chunks[c].unit != unit) continue;
      update(c);
      if (updates_forward() && commits()) store_elsewhere(c);
    }
    micro_batch_ = micro_batch;
  }

  // With a verdict all of it is pending. Without one a state that is carried out stays where it is updated.
  void update(std::uint32_t c) {
    const std::uint32_t unit = input_.chunks[c].unit;
    const bool pending = updates_forward();
    const bool stays = !pending && carried_out_[c] != kNone;
    SlotId state = kNone;
    if (pending && carried_in_[c] != kNone) {
      state = carried_in_[c];
    } else if (stays) {
      state = carried_out_[c];
      move(builder_.read(state_home_[c]), builder_.write(state), Item::state_chunk);
    } else {
      state = to_host(state_home_[c], Item::state_chunk, pending);
    }
    const SlotId sum = to_host(grad_home_[c], Item::grad_sum, pending);
    const bool direct = tier_of(param_home_[c]) == Tier::host;
    const SlotId params =
        direct ? param_home_[c] : slot(Tier::host, Item::param_chunk, unit, c, 2 * kChunkNumel);
    Op op = make(OpKind::update, Lane::optimizer, unit, c,
                 {builder_.update(state), builder_.read(sum), builder_.write(params)});
    op.predicated = pending;
    op.bytes = 28 * kChunkNumel;
    builder_.add(op);
    from_host(params, param_home_[c], Item::param_chunk, pending);
    if (!stays) from_host(state, state_home_[c], Item::state_chunk, pending);
  }

  SlotId offload(SlotId activation) {
    const SlotId host = slot(Tier::host, Item::activation, 0, kNone, shape(0).output_bytes);
    move(builder_.read(activation), builder_.write(host), Item::activation);
    if (options_.activations == Tier::host) return host;
    const SlotId nvme = slot(Tier::nvme, Item::activation, 0, kNone, shape(0).output_bytes);
    move(builder_.read(host), builder_.write(nvme), Item::activation);
    return nvme;
  }

  void evaluate() {
    micro_batch_ = 0;
    outputs_.assign(units(), kNone);
    saved_.assign(units(), kNone);
    for (std::uint32_t u = 0; u < units(); ++u) forward(u);
  }

  void materialize() {
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      const std::uint32_t unit = input_.chunks[c].unit;
      const SlotId state = tier_of(state_home_[c]) == Tier::host
                               ? state_home_[c]
                               : slot(Tier::host, Item::state_chunk, unit, c, kStateBytes);
      move(builder_.read(store_[c]), builder_.write(state), Item::state_chunk);
      const bool direct = tier_of(param_home_[c]) == Tier::host;
      const SlotId params =
          direct ? param_home_[c] : slot(Tier::host, Item::param_chunk, unit, c, 2 * kChunkNumel);
      builder_.add(
          make(OpKind::cast_param, Lane::optimizer, unit, c, {builder_.read(state), builder_.write(params)}));
      from_host(params, param_home_[c], Item::param_chunk);
      if (tier_of(state_home_[c]) == Tier::device) from_host(state, state_home_[c], Item::state_chunk);
    }
  }

  void commit_between() {
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) store_elsewhere(c);
    commit();
  }

  void visit() {
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      const SlotId state = to_host(state_home_[c], Item::state_chunk);
      builder_.add(
          make(OpKind::visit_state, Lane::optimizer, input_.chunks[c].unit, c, {builder_.read(state)}));
    }
  }
};

}  // namespace

TinyStep tiny_step(const TinyOptions& options) {
  return Steps(options).write();
}

}  // namespace terrace
