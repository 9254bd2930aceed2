#include "src/plan/check_family.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <tuple>

#include "src/plan/check_rules.h"

namespace terrace {
namespace {

using check_rules::Findings;

bool meets(const Op& op) {
  return check_rules::is_collective(op.kind) || op.kind == OpKind::grad_stats || op.kind == OpKind::commit;
}

RankGroup group_of(const Op& op) {
  return check_rules::is_collective(op.kind) ? op.group : RankGroup::world;
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend auto operator<=>(const Range&, const Range&) = default;
};

// Bytes of the accesses of a role, ascending, without empty ones.
std::vector<Range> ranges(const Op& op, Role role) {
  std::vector<Range> found;
  for (const Access& access : op.accesses) {
    if (access.role == role && access.bytes > 0)
      found.push_back({access.offset_bytes, access.offset_bytes + access.bytes});
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::uint64_t bytes(const Op& op, Role role) {
  std::uint64_t sum = 0;
  for (const Range& range : ranges(op, role)) sum += range.end - range.begin;
  return sum;
}

// Ranges end to end as one; more than one where they leave gaps or share bytes.
std::vector<Range> joined(std::vector<Range> parts) {
  std::sort(parts.begin(), parts.end());
  std::vector<Range> runs;
  for (const Range& part : parts) {
    if (!runs.empty() && runs.back().end == part.begin) {
      runs.back().end = part.end;
    } else {
      runs.push_back(part);
    }
  }
  return runs;
}

class Meeting {
 public:
  Meeting(const std::vector<const StepProgram*>& programs, const CheckRanks& mesh, Findings& findings)
      : programs_(programs),
        mesh_(mesh),
        findings_(findings),
        ranks_(static_cast<std::uint32_t>(programs.size())),
        at_(programs.size(), 0) {}

  // Lets a group pass whenever all its ranks stand before one of its collectives.
  void run() {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) skip(rank);
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) moved = pass(rank) || moved;
      if (!findings_.empty()) return;
    }
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (is_done(rank)) continue;
      std::string where;
      for (const std::uint32_t other : members(rank))
        where += fmt::format("; rank {}: {}", other, words(other));
      report(rank, fmt::format("rank {} waits for ever for its group at {}{}", rank, words(rank), where));
    }
  }

 private:
  const Op& op(std::uint32_t rank) const { return programs_[rank]->ops[at_[rank]]; }
  bool is_done(std::uint32_t rank) const { return at_[rank] == programs_[rank]->ops.size(); }
  void skip(std::uint32_t rank) {
    while (!is_done(rank) && !meets(op(rank))) ++at_[rank];
  }
  std::string words(std::uint32_t rank) const {
    return is_done(rank) ? "the end of its program" : describe_op(*programs_[rank], at_[rank]);
  }
  void report(std::uint32_t rank, std::string text) {
    findings_.add(Rule::collective, at_[rank], kNone, kNone, std::move(text));
  }

  // The ranks of the group of a rank's next collective.
  std::vector<std::uint32_t> members(std::uint32_t rank) const {
    const RankGroup group = group_of(op(rank));
    std::vector<std::uint32_t> found;
    for (std::uint32_t other = 0; other < ranks_; ++other) {
      const bool same_replica = other / mesh_.shards == rank / mesh_.shards;
      const bool same_shard = other % mesh_.shards == rank % mesh_.shards;
      if (group == RankGroup::world || (group == RankGroup::shard ? same_replica : same_shard))
        found.push_back(other);
    }
    return found;
  }

  auto key(std::uint32_t rank) const {
    const Op& o = op(rank);
    const std::uint32_t round = o.kind == OpKind::reduce_scatter ? o.micro_batch / ranks_ : 0;
    return std::tuple(o.kind, group_of(o), o.unit, round);
  }

  bool pass(std::uint32_t rank) {
    if (is_done(rank)) return false;
    const std::vector<std::uint32_t> group = members(rank);
    for (const std::uint32_t other : group) {
      if (is_done(other) || group_of(op(other)) != group_of(op(rank))) return false;
    }
    for (const std::uint32_t other : group) {
      if (key(other) == key(rank)) continue;
      report(rank, fmt::format("rank {} comes to {} where rank {} comes to {}", rank, words(rank), other,
                               words(other)));
      return false;
    }
    if (op(rank).kind == OpKind::all_gather) check_gather(group);
    if (op(rank).kind == OpKind::reduce_scatter) check_exchange(group);
    for (const std::uint32_t other : group) {
      ++at_[other];
      skip(other);
    }
    return true;
  }

  void check_gather(const std::vector<std::uint32_t>& group) {
    std::vector<Range> sent;
    for (const std::uint32_t rank : group) {
      const auto mine = ranges(op(rank), Role::mine);
      sent.insert(sent.end(), mine.begin(), mine.end());
    }
    const std::vector<Range> whole = joined(std::move(sent));
    for (const std::uint32_t rank : group) {
      std::vector<Range> got = ranges(op(rank), Role::mine);
      const auto others = ranges(op(rank), Role::others);
      got.insert(got.end(), others.begin(), others.end());
      if (whole.size() <= 1 && joined(std::move(got)) == whole) continue;
      report(rank, fmt::format("rank {}: the ranges that the ranks of {} send do not tile what it gathers",
                               rank, words(rank)));
    }
  }

  void check_exchange(const std::vector<std::uint32_t>& group) {
    std::uint64_t sent = 0, received = 0;
    for (const std::uint32_t rank : group) {
      sent += bytes(op(rank), Role::grads);
      received += bytes(op(rank), Role::received);
    }
    if (sent == received) return;
    report(group[0], fmt::format("in {} all ranks contribute {} bytes and receive {}", words(group[0]), sent,
                                 received));
  }

  const std::vector<const StepProgram*>& programs_;
  const CheckRanks& mesh_;
  Findings& findings_;
  std::uint32_t ranks_;
  std::vector<OpId> at_;  // [rank]: next collective
};

}  // namespace

std::vector<Violation> check_family(const std::vector<const StepProgram*>& programs, const CheckRanks& mesh) {
  Findings findings;
  if (programs.size() != mesh.ranks || std::uint64_t{mesh.shards} * mesh.replicas != mesh.ranks) {
    findings.add(Rule::input, kNone, kNone, kNone,
                 fmt::format("{} programs for {} ranks in {} shards x {} replicas", programs.size(),
                             mesh.ranks, mesh.shards, mesh.replicas));
    return findings.take();
  }
  for (std::uint32_t rank = 1; rank < programs.size(); ++rank) {
    if (programs[rank]->kind == programs[0]->kind) continue;
    findings.add(Rule::input, kNone, kNone, kNone,
                 fmt::format("rank {} runs a {} program while rank 0 runs a {} program", rank,
                             name_of(programs[rank]->kind), name_of(programs[0]->kind)));
    return findings.take();
  }
  Meeting(programs, mesh, findings).run();
  return findings.take();
}

}  // namespace terrace
