#include "src/collectives/referee.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/base/fail.h"
#include "src/collectives/rank_words.h"

namespace terrace {
namespace {

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

}  // namespace

int Referee::Group::rank_of(int world_rank) const {
  return static_cast<int>(std::ranges::find(world_ranks, world_rank) - world_ranks.begin());
}

Referee::Referee(std::uint32_t world, int size, Send send)
    : world_(world), size_(size), send_(std::move(send)) {
  std::vector<int> ranks(at(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  add_group(std::move(ranks), "world");
}

std::uint32_t Referee::add_group(std::vector<int> world_ranks, std::string name) {
  const std::uint32_t number = next_group_++;
  Group& group = groups_[number];
  group.number = number;
  group.name = std::move(name);
  group.calls.resize(world_ranks.size());
  group.gone.resize(world_ranks.size());
  group.world_ranks = std::move(world_ranks);
  return number;
}

void Referee::receive(const ControlMessage& message, Clock::time_point now) {
  using enum ControlMessage::Kind;
  if (message.kind == close) ++closed_;
  if (message.kind == close || failed_) return;
  if (message.kind == hello) return greet(message);
  if (message.kind == abort) {
    return fail_all(ErrorCode::cancelled, fmt::format("rank {} failed: {}", message.rank, message.text));
  }
  const auto found = groups_.find(message.group);
  check(found != groups_.end() && found->second.rank_of(message.rank) < found->second.size(),
        "rank {} is not in a group {} of world {}", message.rank, message.group, world_);
  if (message.kind == enter) take_call(found->second, message, now);
  if (message.kind == leave) take_leave(found->second, message.rank);
}

void Referee::greet(const ControlMessage& message) {
  if (!options_) {
    options_ = message.options;
    first_rank_ = message.rank;
  }
  if (options_->time_limit == message.options.time_limit && options_->link_gbps == message.options.link_gbps)
    return;
  fail_all(ErrorCode::invalid_argument,
           fmt::format("rank {} makes the world with a time limit of {} ms and a link of {} GB/s, rank {} "
                       "with {} ms and {} GB/s",
                       message.rank, message.options.time_limit.count(), message.options.link_gbps,
                       first_rank_, options_->time_limit.count(), options_->link_gbps));
}

void Referee::take_call(Group& group, const ControlMessage& message, Clock::time_point now) {
  const int rank = group.rank_of(message.rank);
  const CollectiveCall& call = message.call->call;
  for (int r = 0; r < group.size(); ++r) {
    if (!group.calls[at(r)]) continue;
    const CollectiveCall& other = group.calls[at(r)]->call;
    const std::string wrong = difference({call, rank, message.rank}, {other, r, group.world_ranks[at(r)]});
    if (wrong.empty()) continue;
    group.calls[at(rank)] = message.call;
    return fail_all(
        ErrorCode::invalid_argument,
        fmt::format("rank {} is in {}, rank {} in {}: {}; call {} of group {}", message.rank, describe(call),
                    group.world_ranks[at(r)], describe(other), wrong, group.opened + 1, group.name));
  }
  const auto gone = std::ranges::find(group.gone, true) - group.gone.begin();
  if (gone < group.size()) {
    return fail_all(ErrorCode::cancelled, fmt::format("rank {} left group {} before {}",
                                                      group.world_ranks[static_cast<std::size_t>(gone)],
                                                      group.name, describe(call)));
  }
  if (group.entered == 0) {
    group.first = rank;
    group.since = now;
  }
  group.calls[at(rank)] = message.call;
  if (++group.entered < group.size()) return;
  std::string wrong = call.kind == CollectiveKind::split ? wrong_groups(group) : std::string();
  if (!wrong.empty()) return fail_all(ErrorCode::invalid_argument, std::move(wrong));
  open(group, call);
}

// All lists of a split are there. Returns what is wrong with them, if anything.
std::string Referee::wrong_groups(const Group& group) const {
  for (int r = 0; r < group.size(); ++r) {
    const CollectiveCall& mine = group.calls[at(r)]->call;
    for (const int member : mine.ranks) {
      const CollectiveCall& theirs = group.calls[at(member)]->call;
      if (std::ranges::equal(mine.ranks, theirs.ranks) && mine.name == theirs.name) continue;
      return fmt::format("rank {} is in {}, rank {} in {}: different groups; call {} of group {}",
                         group.world_ranks[at(r)], describe(mine), group.world_ranks[at(member)],
                         describe(theirs), group.opened + 1, group.name);
    }
  }
  return {};
}

void Referee::open(Group& group, const CollectiveCall& last) {
  std::vector<bool> present;
  if (last.kind == CollectiveKind::all_to_all || last.kind == CollectiveKind::reduce_scatter) {
    for (const auto& record : group.calls) present.push_back(record->call.present);
  }
  std::vector<std::uint32_t> made(at(group.size()), 0);
  for (int r = 0; r < group.size(); ++r) {
    const CollectiveCall& call = group.calls[at(r)]->call;
    if (call.kind != CollectiveKind::split || call.ranks.empty() || call.ranks.front() != r) continue;
    std::vector<int> members;
    for (const int member : call.ranks) members.push_back(group.world_ranks[at(member)]);
    const std::uint32_t number = add_group(std::move(members), std::string(call.name));
    for (const int member : call.ranks) made[at(member)] = number;
  }
  group.entered = 0;
  ++group.opened;
  std::ranges::fill(group.calls, nullptr);
  for (int r = 0; r < group.size(); ++r) {
    send_(group.world_ranks[at(r)], {.kind = ControlMessage::Kind::open,
                                     .world = world_,
                                     .group = group.number,
                                     .present = present,
                                     .made = made[at(r)]});
  }
}

void Referee::take_leave(Group& group, int world_rank) {
  group.gone[at(group.rank_of(world_rank))] = true;
  const auto waiting = std::ranges::find_if(group.calls, [](const auto& call) { return call != nullptr; });
  if (waiting != group.calls.end()) {
    return fail_all(ErrorCode::cancelled, fmt::format("rank {} left group {} before {}", world_rank,
                                                      group.name, describe((*waiting)->call)));
  }
  if (std::ranges::count(group.gone, true) == group.size()) groups_.erase(group.number);
}

void Referee::look_at_clock(Clock::time_point now) {
  if (failed_ || !options_) return;
  for (const auto& [number, group] : groups_) {
    if (group.entered == 0 || now - group.since < options_->time_limit) continue;
    const CollectiveCall& call = group.calls[at(group.first)]->call;
    std::string elsewhere;
    for (int r = 0; r < group.size(); ++r) {
      if (!group.calls[at(r)]) elsewhere += whereabouts(group.world_ranks[at(r)]);
    }
    using Seconds = std::chrono::duration<double>;
    return fail_all(
        ErrorCode::cancelled,
        fmt::format("{} did not come to {}: rank {} waited {:.2f} s (the limit is {:.2f} s){}",
                    missing_ranks(group), place(group, call), group.world_ranks[at(group.first)],
                    Seconds(now - group.since).count(), Seconds(options_->time_limit).count(), elsewhere));
  }
}

void Referee::fail_all(ErrorCode code, std::string cause) {
  failed_ = true;
  for (int rank = 0; rank < size_; ++rank) {
    ControlMessage message{
        .kind = ControlMessage::Kind::failed, .world = world_, .code = code, .text = cause};
    for (const auto& [number, group] : groups_) {
      const int place = group.rank_of(rank);
      if (place == group.size() || !group.calls[at(place)]) continue;
      message.waited_for.emplace_back(number, missing_ranks(group));
    }
    send_(rank, std::move(message));
  }
  groups_.clear();
}

// "rank 3", or "ranks 1 and 3": those of the group that have not come; empty when all have.
std::string Referee::missing_ranks(const Group& group) const {
  std::vector<int> missing;
  for (int r = 0; r < group.size(); ++r) {
    if (!group.calls[at(r)]) missing.push_back(group.world_ranks[at(r)]);
  }
  if (missing.empty()) return {};
  return rank_words(missing);
}

std::string Referee::place(const Group& group, const CollectiveCall& call) const {
  return fmt::format("{}, call {} of group {}", describe(call), group.opened + 1, group.name);
}

// "; rank 3 is in barrier (step 7), call 1 of group shards": empty when it waits nowhere.
std::string Referee::whereabouts(int world_rank) const {
  for (const auto& [number, group] : groups_) {
    const int rank = group.rank_of(world_rank);
    if (rank == group.size() || !group.calls[at(rank)]) continue;
    return fmt::format("; rank {} is in {}", world_rank, place(group, group.calls[at(rank)]->call));
  }
  return {};
}

}  // namespace terrace
