#include "tests/plan/tiny_step.h"

#include <algorithm>
#include <array>

#include "tests/plan/program_builder.h"

namespace terrace {
namespace {

constexpr std::uint64_t kChunkNumel = kBlockNumel;
constexpr std::uint64_t kStateBytes = 12 * kChunkNumel + 512;

CheckInput tiny_input(const TinyOptions& options) {
  CheckInput input;
  input.contributions = options.contributions;
  input.model.grad_dtype = options.grad_dtype;
  for (std::uint32_t u = 0; u < options.units; ++u) {
    const bool last = u + 1 == options.units;
    UnitShape unit;
    unit.name = "unit" + std::to_string(u);
    // One chunk, or two with padding at the end of the second.
    unit.tensors = {{unit.name + ".weight", u % 2 == 0 ? 2 * kChunkNumel - 100 : kChunkNumel, 0}};
    unit.output_bytes = last ? 0 : 640;
    unit.saved_bytes = last || u == 0 ? 0 : 2000;
    unit.forward_workspace_bytes = 300;
    unit.backward_workspace_bytes = 500;
    unit.forward_flops = 1e6;
    unit.backward_flops = 2e6;
    unit.backward_reads_params = u != 0;
    if (u > 0 && u + options.tied >= options.units) {
      unit.shared_units = {0};
      unit.shared_grad_bytes = 4 * kChunkNumel;
    }
    for (std::uint64_t at = 0; at < unit.padded_numel(); at += kChunkNumel) {
      const std::size_t c = input.chunks.size();
      input.chunks.push_back({u, at, kChunkNumel, options.state_homes[c % options.state_homes.size()],
                              options.param_homes[c % options.param_homes.size()], kStateBytes});
    }
    input.model.units.push_back(unit);
  }
  return input;
}

class Writer {
 public:
  explicit Writer(const TinyOptions& options) : options_(options), input_(tiny_input(options)), builder_(0) {
    builder_.program.kind = options.kind;
    builder_.program.contributions = options.contributions;
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      const CheckChunk& chunk = input_.chunks[c];
      param_home_.push_back(slot(chunk.param_home, Item::param_chunk, chunk.unit, c, 2 * chunk.numel, true));
      const Tier grads = options.grad_homes[c % options.grad_homes.size()];
      grad_home_.push_back(slot(grads, Item::grad_sum, chunk.unit, c, sum_bytes(), true));
      store_.push_back(slot(Tier::nvme, Item::state_chunk, chunk.unit, c, kStateBytes, true));
      state_home_.push_back(chunk.state_home == Tier::nvme ? store_.back()
                                                           : slot(chunk.state_home, Item::state_chunk,
                                                                  chunk.unit, c, kStateBytes, true));
    }
  }

  TinyStep write() {
    switch (options_.kind) {
      case ProgramKind::train:
      case ProgramKind::train_commit:
        train();
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
    place(program);
    derive_waits(program);
    return {program, input_};
  }

 private:
  std::uint32_t units() const { return options_.units; }
  const UnitShape& shape(std::uint32_t unit) const { return input_.model.units[unit]; }
  std::uint64_t grad_bytes() const { return dtype_bytes(options_.grad_dtype); }
  std::uint64_t sum_bytes() const { return (options_.contributions == 1 ? grad_bytes() : 4) * kChunkNumel; }
  Tier tier_of(SlotId slot) const { return builder_.program.slots[slot].tier; }

  SlotId slot(Tier tier, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes,
              bool resident = false) {
    const SlotId id = builder_.slot(tier, 0, bytes, resident, item);
    builder_.program.slots[id].unit = unit;
    builder_.program.slots[id].chunk = chunk;
    return id;
  }

  Op make(OpKind kind, Lane lane, std::uint32_t unit, std::uint32_t chunk, std::vector<Access> accesses) {
    Op op;
    op.kind = kind;
    op.lane = lane;
    op.unit = unit;
    op.chunk = chunk;
    op.micro_batch = micro_batch_;
    op.accesses = std::move(accesses);
    return op;
  }

  void move(Access from, Access to, Item item, bool predicated = false) {
    from.mode = AccessMode::read;
    to.mode = AccessMode::write;
    const Tier source = tier_of(from.slot);
    const Tier target = tier_of(to.slot);
    OpKind kind = OpKind::copy_to_host;
    Lane lane = Lane::d2h;
    if (source == Tier::nvme || target == Tier::nvme) {
      const bool reads = source == Tier::nvme;
      lane = Lane::nvme;
      if (item == Item::state_chunk) kind = reads ? OpKind::read_state : OpKind::write_state;
      if (item == Item::param_chunk) kind = reads ? OpKind::read_param : OpKind::write_param;
      if (item == Item::grad_sum) kind = reads ? OpKind::read_gradient : OpKind::write_gradient;
      if (item == Item::activation) kind = reads ? OpKind::read_activation : OpKind::write_activation;
    } else if (target == Tier::device) {
      kind = OpKind::copy_to_device;
      lane = Lane::h2d;
    }
    const Slot& labelled = builder_.program.slots[from.slot];
    Op op = make(kind, lane, labelled.unit, labelled.chunk, {from, to});
    op.predicated = predicated;
    op.bytes = from.bytes;
    builder_.add(op);
  }

  // The same data in a new slot of host memory, or where it is when that is there.
  SlotId to_host(SlotId home, Item item) {
    if (tier_of(home) == Tier::host) return home;
    const Slot labelled = builder_.program.slots[home];
    const SlotId staged = slot(Tier::host, item, labelled.unit, labelled.chunk, labelled.bytes);
    move(builder_.read(home), builder_.write(staged), item);
    return staged;
  }
  void from_host(SlotId staged, SlotId home, Item item, bool predicated) {
    if (staged != home) move(builder_.read(staged), builder_.write(home), item, predicated);
  }

  SlotId gather(std::uint32_t unit) {
    const SlotId piece = slot(Tier::device, Item::piece, unit, kNone, 2 * shape(unit).padded_numel());
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      const CheckChunk& chunk = input_.chunks[c];
      if (chunk.unit != unit) continue;
      SlotId source = param_home_[c];
      if (tier_of(source) == Tier::nvme) source = to_host(source, Item::param_chunk);
      const Access target{piece, AccessMode::write, Role::none, 2 * chunk.first_numel, 2 * chunk.numel};
      move(builder_.read(source), target, Item::param_chunk);
    }
    return piece;
  }

  Op compute(OpKind kind, std::uint32_t unit, SlotId input) {
    Op op = make(kind, Lane::compute, unit, kNone, {});
    if (kind != OpKind::backward || shape(unit).backward_reads_params) {
      op.accesses.push_back(builder_.whole(gather(unit), AccessMode::read, Role::params));
      for (const std::uint32_t shared : shape(unit).shared_units) {
        op.accesses.push_back(builder_.whole(gather(shared), AccessMode::read, Role::shared_params));
      }
    }
    if (input != kNone) op.accesses.push_back(builder_.whole(input, AccessMode::read, Role::input));
    const std::uint64_t workspace =
        kind == OpKind::backward ? shape(unit).backward_workspace_bytes : shape(unit).forward_workspace_bytes;
    op.accesses.push_back(builder_.whole(slot(Tier::device, Item::workspace, unit, kNone, workspace),
                                         AccessMode::update, Role::workspace));
    return op;
  }

  SlotId add_output(Op& op, Item item, std::uint32_t unit, std::uint64_t bytes, Role role) {
    const SlotId made = slot(Tier::device, item, unit, kNone, bytes);
    op.accesses.push_back(builder_.whole(made, AccessMode::write, role));
    return made;
  }

  // Leaves the unit's output in outputs_ and what it saves in saved_.
  void forward(std::uint32_t unit) {
    Op op = compute(OpKind::forward, unit, unit == 0 ? kNone : outputs_[unit - 1]);
    const bool last = unit + 1 == units();
    if (!last)
      outputs_[unit] = add_output(op, Item::activation, unit, shape(unit).output_bytes, Role::output);
    const bool keeps =
        shape(unit).saved_bytes > 0 && !options_.recompute && options_.kind != ProgramKind::eval;
    if (keeps) saved_[unit] = add_output(op, Item::saved, unit, shape(unit).saved_bytes, Role::saved);
    builder_.add(op);
  }

  void backward(std::uint32_t unit) {
    const bool last = unit + 1 == units();
    const SlotId input = unit == 0 ? kNone : outputs_[unit - 1];
    if (options_.recompute && shape(unit).saved_bytes > 0) {
      Op op = compute(OpKind::recompute, unit, input);
      saved_[unit] = add_output(op, Item::saved, unit, shape(unit).saved_bytes, Role::saved);
      builder_.add(op);
    }
    Op op = compute(OpKind::backward, unit, input);
    if (!last) op.accesses.push_back(builder_.whole(output_grad_, AccessMode::read, Role::output_grad));
    if (shape(unit).saved_bytes > 0)
      op.accesses.push_back(builder_.whole(saved_[unit], AccessMode::read, Role::saved));
    if (unit > 0) {
      output_grad_ =
          add_output(op, Item::activation_grad, unit - 1, shape(unit - 1).output_bytes, Role::input_grad);
    }
    if (shape(unit).shared_grad_bytes > 0 && last) {
      shared_grad_ = add_output(op, Item::shared_grad, 0, shape(unit).shared_grad_bytes, Role::shared_grad);
    } else if (shape(unit).shared_grad_bytes > 0) {
      op.accesses.push_back(builder_.whole(shared_grad_, AccessMode::update, Role::shared_grad));
    } else if (unit == 0 && options_.tied > 0) {
      op.accesses.push_back(builder_.whole(shared_grad_, AccessMode::read, Role::shared_grad));
    }
    const SlotId grads =
        add_output(op, Item::contribution, unit, grad_bytes() * shape(unit).padded_numel(), Role::grads);
    builder_.add(op);
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      if (input_.chunks[c].unit == unit) fold(c, grads);
    }
  }

  void fold(std::uint32_t c, SlotId grads) {
    const CheckChunk& chunk = input_.chunks[c];
    const Access slice{grads, AccessMode::read, Role::none, grad_bytes() * chunk.first_numel,
                       grad_bytes() * chunk.numel};
    const AccessMode mode = micro_batch_ == 0 ? AccessMode::write : AccessMode::update;
    const SlotId home = grad_home_[c];
    if (tier_of(home) == Tier::device) {
      builder_.add(make(OpKind::fold, Lane::compute, chunk.unit, c, {slice, builder_.whole(home, mode)}));
      return;
    }
    SlotId sum = home;
    if (tier_of(home) == Tier::nvme) {
      sum = micro_batch_ == 0 ? slot(Tier::host, Item::grad_sum, chunk.unit, c, sum_bytes())
                              : to_host(home, Item::grad_sum);
    }
    if (options_.contributions == 1) {
      move(slice, builder_.write(sum), Item::grad_sum);
      builder_.add(make(OpKind::fold, Lane::optimizer, chunk.unit, c, {builder_.read(sum)}));
    } else {
      const SlotId staged = slot(Tier::host, Item::grad_chunk, chunk.unit, c, slice.bytes);
      move(slice, builder_.write(staged), Item::grad_chunk);
      builder_.add(make(OpKind::fold, Lane::optimizer, chunk.unit, c,
                        {builder_.read(staged), builder_.whole(sum, mode)}));
    }
    from_host(sum, home, Item::grad_sum, false);
  }

  void train() {
    for (std::uint32_t k = 0; k < options_.contributions; ++k) {
      micro_batch_ = k;
      outputs_.assign(units(), kNone);
      saved_.assign(units(), kNone);
      SlotId kept = kNone;
      for (std::uint32_t u = 0; u + 1 < units(); ++u) {
        forward(u);
        if (u == 0 && options_.activations != Tier::device) kept = offload(outputs_[0]);
      }
      for (std::uint32_t u = units(); u-- > 0;) {
        if (u == 1 && kept != kNone) {
          const SlotId back = slot(Tier::device, Item::activation, 0, kNone, shape(0).output_bytes);
          move(builder_.read(to_host(kept, Item::activation)), builder_.write(back), Item::activation);
          outputs_[0] = back;
        }
        backward(u);
      }
    }
    micro_batch_ = kNone;
    builder_.add(make(OpKind::grad_stats, Lane::optimizer, kNone, kNone, {}));
    const bool commits = options_.kind == ProgramKind::train_commit;
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      const std::uint32_t unit = input_.chunks[c].unit;
      const SlotId state = to_host(state_home_[c], Item::state_chunk);
      const SlotId sum = to_host(grad_home_[c], Item::grad_sum);
      const bool direct = tier_of(param_home_[c]) == Tier::host;
      const SlotId params =
          direct ? param_home_[c] : slot(Tier::host, Item::param_chunk, unit, c, 2 * kChunkNumel);
      Op op = make(OpKind::update, Lane::optimizer, unit, c,
                   {builder_.update(state), builder_.read(sum), builder_.write(params)});
      op.predicated = true;
      op.bytes = 28 * kChunkNumel;
      builder_.add(op);
      from_host(params, param_home_[c], Item::param_chunk, true);
      from_host(state, state_home_[c], Item::state_chunk, true);
      if (commits && state_home_[c] != store_[c]) from_host(state, store_[c], Item::state_chunk, false);
    }
    if (commits) builder_.add(make(OpKind::commit, Lane::nvme, kNone, kNone, {}));
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
      from_host(params, param_home_[c], Item::param_chunk, false);
      if (tier_of(state_home_[c]) == Tier::device) from_host(state, state_home_[c], Item::state_chunk, false);
    }
  }

  void commit_between() {
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      if (state_home_[c] == store_[c]) continue;
      from_host(to_host(state_home_[c], Item::state_chunk), store_[c], Item::state_chunk, false);
    }
    builder_.add(make(OpKind::commit, Lane::nvme, kNone, kNone, {}));
  }

  void visit() {
    for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
      const SlotId state = to_host(state_home_[c], Item::state_chunk);
      builder_.add(
          make(OpKind::visit_state, Lane::optimizer, input_.chunks[c].unit, c, {builder_.read(state)}));
    }
  }

  // Gives every slot the lowest place that no slot alive at the same time has.
  void place(StepProgram& program) const {
    struct Live {
      SlotId slot = kNone;
      OpId first = kNone;
      OpId last = 0;
    };
    std::vector<Live> lives(program.slots.size());
    for (OpId id = 0; id < program.ops.size(); ++id) {
      for (const Access& access : program.ops[id].accesses) {
        Live& live = lives[access.slot];
        live.first = std::min(live.first, id);
        live.last = id;
      }
    }
    for (SlotId id = 0; id < lives.size(); ++id) {
      lives[id].slot = id;
      if (program.slots[id].resident || !options_.compact) {
        lives[id].first = 0;
        lives[id].last = kNone - 1;
      }
    }
    std::stable_sort(lives.begin(), lives.end(),
                     [](const Live& a, const Live& b) { return a.first < b.first; });
    program.tier_bytes = {};
    for (std::size_t i = 0; i < lives.size(); ++i) {
      Slot& slot = program.slots[lives[i].slot];
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t j = 0; j < i; ++j) {
          const Slot& other = program.slots[lives[j].slot];
          const bool together = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
          if (!together || slot.tier != other.tier || slot.offset_bytes >= other.offset_bytes + other.bytes ||
              other.offset_bytes >= slot.offset_bytes + slot.bytes) {
            continue;
          }
          slot.offset_bytes = other.offset_bytes + other.bytes;
          moved = true;
        }
      }
      std::uint64_t& used = program.tier_bytes[static_cast<std::size_t>(slot.tier)];
      used = std::max(used, slot.offset_bytes + slot.bytes);
    }
  }

  const TinyOptions& options_;
  CheckInput input_;
  ProgramBuilder builder_;
  std::vector<SlotId> param_home_, grad_home_, state_home_, store_;  // by chunk
  std::vector<SlotId> outputs_, saved_;                              // by unit
  SlotId output_grad_ = kNone;
  SlotId shared_grad_ = kNone;
  std::uint32_t micro_batch_ = kNone;
};

bool must_follow(const StepProgram& program, OpId a, OpId b) {
  const Op& x = program.ops[a];
  const Op& y = program.ops[b];
  return (x.kind == OpKind::fold && y.kind == OpKind::grad_stats) ||
         (x.kind == OpKind::grad_stats && y.predicated) ||
         (x.kind == OpKind::write_state && y.kind == OpKind::commit);
}

}  // namespace

TinyStep tiny_step(const TinyOptions& options) {
  return Writer(options).write();
}

bool conflict(const StepProgram& program, OpId a, OpId b) {
  for (const Access& x : program.ops[a].accesses) {
    for (const Access& y : program.ops[b].accesses) {
      const Slot& s = program.slots[x.slot];
      const Slot& t = program.slots[y.slot];
      if (s.tier != t.tier || (x.mode == AccessMode::read && y.mode == AccessMode::read)) continue;
      const std::uint64_t i = s.offset_bytes + x.offset_bytes;
      const std::uint64_t j = t.offset_bytes + y.offset_bytes;
      if (i < j + y.bytes && j < i + x.bytes) return true;
    }
  }
  return false;
}

void derive_waits(StepProgram& program) {
  for (OpId b = 0; b < program.ops.size(); ++b) {
    program.ops[b].waits.clear();
    for (OpId a = 0; a < b; ++a) {
      if (conflict(program, a, b) || must_follow(program, a, b)) program.ops[b].waits.push_back(a);
    }
  }
  for (const WaitOf& wait : redundant_waits(program)) std::erase(program.ops[wait.op].waits, wait.wait);
}

}  // namespace terrace
