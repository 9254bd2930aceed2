// How often, and in which order, each operation stands in the list.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>

#include "src/plan/check_ranks.h"

namespace terrace::check_rules {
namespace {

// Operations of a kind by what they are for: [of * per + k].
class Tally {
 public:
  Tally() = default;
  Tally(std::size_t of, std::uint32_t per) : per_(per), ids_(of * per) {}
  void add(std::uint32_t of, std::uint32_t k, OpId id) { ids_[of * std::size_t{per_} + k].push_back(id); }
  const std::vector<OpId>& at(std::uint32_t of, std::uint32_t k = 0) const {
    return ids_[of * std::size_t{per_} + k];
  }

 private:
  std::uint32_t per_ = 1;
  std::vector<std::vector<OpId>> ids_;
};

class Counts {
 public:
  Counts(const StepProgram& program, const CheckInput& input, const HappensBefore& order, Findings& findings)
      : program_(program),
        input_(input),
        order_(order),
        findings_(findings),
        view_(program, input),
        units_(static_cast<std::uint32_t>(input.model.units.size())),
        chunks_(static_cast<std::uint32_t>(input.chunks.size())),
        carried_in_(carried_slots(program, Carry::in, input.chunks.size())),
        carried_out_(carried_slots(program, Carry::out, input.chunks.size())),
        forward_(units_, input.contributions),
        backward_(units_, input.contributions),
        recompute_(units_, input.contributions),
        fold_(chunks_, input.contributions),
        update_(chunks_, 1),
        cast_(chunks_, 1),
        visit_(chunks_, 1),
        write_state_(chunks_, 1),
        accumulate_(units_, input.contributions),
        sum_group_(units_, input.contributions),
        round_sum_(units_, 1) {
    for (Tally& exchange : exchange_) exchange = Tally(units_, input.contributions);
    for (OpId id = 0; id < program.ops.size(); ++id) {
      const Op& op = program.ops[id];
      switch (op.kind) {
        case OpKind::forward:
          forward_.add(op.unit, op.micro_batch, id);
          break;
        case OpKind::backward:
          backward_.add(op.unit, op.micro_batch, id);
          break;
        case OpKind::recompute:
          recompute_.add(op.unit, op.micro_batch, id);
          break;
        case OpKind::fold:
          fold_.add(op.chunk, op.micro_batch, id);
          break;
        case OpKind::update:
          update_.add(op.chunk, 0, id);
          break;
        case OpKind::cast_param:
          cast_.add(op.chunk, 0, id);
          break;
        case OpKind::visit_state:
          visit_.add(op.chunk, 0, id);
          break;
        case OpKind::write_state:
          write_state_.add(op.chunk, 0, id);
          break;
        case OpKind::reduce_scatter:
          exchange_[static_cast<std::size_t>(op.group)].add(op.unit, op.micro_batch, id);
          break;
        case OpKind::accumulate:
          accumulate_.add(op.unit, op.micro_batch, id);
          break;
        case OpKind::sum_group:
          sum_group_.add(op.unit, op.micro_batch, id);
          break;
        case OpKind::round_sum:
          round_sum_.add(op.unit, 0, id);
          break;
        case OpKind::grad_stats:
          stats_.push_back(id);
          break;
        case OpKind::commit:
          commits_.push_back(id);
          break;
        default:
          break;
      }
    }
  }

  void run() {
    const ProgramKind kind = program_.kind;
    const bool train = trains(program_);
    const bool commits = kind == ProgramKind::train_commit || kind == ProgramKind::commit;
    for (std::uint32_t unit = 0; unit < units_; ++unit) {
      for (std::uint32_t k = 0; k < input_.contributions; ++k) {
        // An evaluation is every rank's own, of one contribution.
        const bool runs = train ? view_.contributes(k) : kind == ProgramKind::eval && k == 0;
        const bool last = unit + 1 == units_;
        expect(forward_.at(unit, k), runs && !(train && last), OpKind::forward, "unit", unit, k);
        expect(backward_.at(unit, k), runs && train, OpKind::backward, "unit", unit, k);
        if (!train || !runs) expect(recompute_.at(unit, k), 0, OpKind::recompute, "unit", unit, k);
        const bool reduces = train && has_gradient(unit);
        for (const RankGroup group : {RankGroup::world, RankGroup::shard, RankGroup::replicate}) {
          expect(exchange_[static_cast<std::size_t>(group)].at(unit, k),
                 reduces && view_.exchanges(group, unit, k), OpKind::reduce_scatter, "unit", unit, k);
        }
        const bool adds = reduces && view_.order() == Reduction::last && view_.contributes(k);
        expect(accumulate_.at(unit, k), adds, OpKind::accumulate, "unit", unit, k);
        expect(sum_group_.at(unit, k), reduces && view_.sums_group(unit, k), OpKind::sum_group, "unit", unit,
               k);
      }
      const bool rounds = train && has_gradient(unit) && view_.order() == Reduction::last;
      expect(round_sum_.at(unit), rounds, OpKind::round_sum, "unit", unit, kNone);
    }
    if (program_.summands != view_.summands()) {
      findings_.add(Rule::count, kNone, kNone, kNone,
                    fmt::format("the program folds {} summands a chunk, wanted {}", program_.summands,
                                view_.summands()));
    }
    for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      for (std::uint32_t k = 0; k < input_.contributions; ++k) {
        const bool folds = train && k < view_.summands() && view_.owns(chunk) && !input_.chunks[chunk].frozen;
        expect(fold_.at(chunk, k), folds, OpKind::fold, "chunk", chunk, k);
      }
      const bool held = view_.holds(chunk);
      const bool updates = train || (kind == ProgramKind::drain && updates_forward(program_));
      expect(update_.at(chunk), held && updates && !input_.chunks[chunk].frozen, OpKind::update, "chunk",
             chunk, kNone);
      expect(cast_.at(chunk), held && kind == ProgramKind::materialize, OpKind::cast_param, "chunk", chunk,
             kNone);
      expect(visit_.at(chunk), held && kind == ProgramKind::visit, OpKind::visit_state, "chunk", chunk,
             kNone);
      expect(write_state_.at(chunk), writes_wanted(chunk), OpKind::write_state, "chunk", chunk, kNone);
    }
    expect(stats_, train, OpKind::grad_stats, "the step", kNone, kNone);
    expect(commits_, commits, OpKind::commit, "the step", kNone, kNone);
    check_order();
    check_predicated();
  }

 private:
  bool has_gradient(std::uint32_t unit) const {
    return std::any_of(input_.chunks.begin(), input_.chunks.end(),
                       [unit](const CheckChunk& chunk) { return chunk.unit == unit && !chunk.frozen; });
  }

  // How often the chunk's state goes to the store, or to the copy of a chunk that is only held. What lives on
  // nvme is written after each update, by the program that follows where the new state is carried there; what
  // lives elsewhere by its owner for a commit. A run starts with a copy of what is in the store.
  std::size_t writes_wanted(std::uint32_t chunk) const {
    const ProgramKind kind = program_.kind;
    if (!view_.holds(chunk)) return 0;
    if (input_.chunks[chunk].frozen && kind != ProgramKind::materialize) return 0;
    if (input_.chunks[chunk].state_home != Tier::nvme) {
      const bool commits = kind == ProgramKind::train_commit || kind == ProgramKind::commit;
      return commits && view_.owns(chunk) ? 1 : 0;
    }
    if (kind == ProgramKind::materialize) return view_.owns(chunk) ? 0 : 1;
    if (updates_forward(program_)) return 1;
    const std::size_t pending = carried_in_[chunk] != kNone ? 1 : 0;
    const std::size_t own = trains(program_) && carried_out_[chunk] == kNone ? 1 : 0;
    return pending + own;
  }

  void expect(const std::vector<OpId>& ids, std::size_t wanted, OpKind kind, std::string_view of,
              std::uint32_t which, std::uint32_t k) {
    if (ids.size() == wanted) return;
    const std::string number = which == kNone ? "" : fmt::format(" {}", which);
    const std::string contribution = k == kNone ? "" : fmt::format(", contribution {}", k);
    findings_.add(Rule::count, ids.empty() ? kNone : ids.back(), kNone, kNone,
                  fmt::format("{}{}{} has {} {} operations, wanted {}", of, number, contribution, ids.size(),
                              name_of(kind), wanted));
  }

  void expect_before(const std::vector<OpId>& earlier, const std::vector<OpId>& later, Rule rule) {
    for (const OpId a : earlier) {
      for (const OpId b : later) {
        if (a < b && order_.before(a, b)) continue;
        findings_.add(rule, b, a, kNone,
                      fmt::format("{} must wait for {}", describe_op(program_, b), describe_op(program_, a)));
      }
    }
  }

  void check_order() {
    // What data flow orders (forward, backward, folds) is not repeated here.
    for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      for (std::uint32_t k = 0; k < input_.contributions; ++k) {
        expect_before(fold_.at(chunk, k), stats_, Rule::verdict);
      }
      if (!updates_backward(program_)) {
        if (view_.owns(chunk)) expect_before(write_state_.at(chunk), commits_, Rule::commit);
        continue;
      }
      // The cut is that of the step before: no update of this one touches a byte before it is done, hence no
      // write of an updated state.
      expect_before(commits_, update_.at(chunk), Rule::commit);
      if (!view_.owns(chunk)) continue;
      for (const OpId write : write_state_.at(chunk)) {
        for (const OpId commit : commits_) {
          if (write < commit) expect_before({write}, {commit}, Rule::commit);
        }
      }
    }
  }

  // With a verdict all of a pending update may be left out, and the update itself must be; without one only
  // writes of carried states are pending.
  void check_predicated() {
    for (OpId id = 0; id < program_.ops.size(); ++id) {
      const Op& op = program_.ops[id];
      const bool forward = updates_forward(program_);
      const bool pending = updates_backward(program_) && op.kind == OpKind::write_state &&
                           !op.accesses.empty() && program_.slots[op.accesses[0].slot].carry == Carry::in;
      if (!op.predicated && ((forward && op.kind == OpKind::update) || pending)) {
        findings_.add(
            Rule::predicate, id, kNone, kNone,
            fmt::format("{} is not predicated, and nothing may be pending", describe_op(program_, id)));
      }
      const bool may_lack = forward ? op.kind == OpKind::update || is_transfer(op.kind) : pending;
      if (op.predicated && !may_lack) {
        findings_.add(Rule::predicate, id, kNone, kNone,
                      fmt::format("{} is predicated: it must run when nothing is pending too",
                                  describe_op(program_, id)));
      }
    }
  }

  const StepProgram& program_;
  const CheckInput& input_;
  const HappensBefore& order_;
  Findings& findings_;
  RankView view_;
  std::uint32_t units_;
  std::uint32_t chunks_;
  std::vector<SlotId> carried_in_, carried_out_;  // [chunk]
  Tally forward_, backward_, recompute_, fold_, update_, cast_, visit_, write_state_;
  Tally accumulate_, sum_group_, round_sum_;
  std::array<Tally, 3> exchange_;  // by RankGroup
  std::vector<OpId> stats_;
  std::vector<OpId> commits_;
};

}  // namespace

void check_counts(const StepProgram& program, const CheckInput& input, const HappensBefore& order,
                  Findings& findings) {
  Counts(program, input, order, findings).run();
}

}  // namespace terrace::check_rules
