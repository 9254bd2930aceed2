#include "src/collectives/local_group.h"

#include <algorithm>
#include <utility>

#include "src/base/fail.h"
#include "src/collectives/rank_words.h"

namespace terrace {

using std::chrono::duration;

LocalWorld::LocalWorld(int size, const CommunicatorOptions& options)
    : options_(options), link_free_(static_cast<std::size_t>(size)) {}

void LocalWorld::fail_all(const Lock&, ErrorCode code, std::string cause) {
  if (failure_) return;
  failure_ = Failure{code, std::move(cause)};
  for (const std::weak_ptr<LocalGroup>& group : groups_) {
    if (const auto live = group.lock()) live->changed_.notify_all();
  }
}

void LocalWorld::throw_failure(const Lock&, const std::string& met_in) const {
  fail(failure_->code, "{}; {}", failure_->cause, met_in);
}

void LocalWorld::add(const Lock&, const std::shared_ptr<LocalGroup>& group) {
  std::erase_if(groups_, [](const auto& old) { return old.expired(); });
  groups_.push_back(group);
}

std::string LocalWorld::whereabouts(const Lock& lock, int world_rank) const {
  for (const std::weak_ptr<LocalGroup>& weak : groups_) {
    const auto group = weak.lock();
    if (!group) continue;
    const auto rank = std::ranges::find(group->world_ranks_, world_rank) - group->world_ranks_.begin();
    if (rank == group->size() || group->calls_[static_cast<std::size_t>(rank)] == nullptr) continue;
    return fmt::format("; rank {} is in {}", world_rank,
                       group->place(lock, *group->calls_[static_cast<std::size_t>(rank)]));
  }
  return {};
}

LocalWorld::Clock::time_point LocalWorld::reserve_link(const Lock&, int world_rank, Clock::time_point from,
                                                       std::uint64_t bytes) {
  const duration<double> time(static_cast<double>(bytes) / (options_.link_gbps * 1e9));
  Clock::time_point& free = link_free_[static_cast<std::size_t>(world_rank)];
  free = std::max(free, from) + std::chrono::ceil<Clock::duration>(time);
  return free;
}

LocalGroup::LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks, std::string name)
    : world_(std::move(world)),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      calls_(world_ranks_.size()),
      gone_(world_ranks_.size()),
      made_(world_ranks_.size()) {}

void LocalGroup::enter(int rank, const CollectiveCall& call) {
  Lock lock = world_->lock();
  stop_if_failed(lock, rank, call);
  check(calls_[index(rank)] == nullptr, "two threads of rank {} in group {} at once",
        world_ranks_[index(rank)], name_);
  stop_if_unmatched(lock, rank, call);
  stop_if_someone_left(lock, rank, call);
  calls_[index(rank)] = &call;
  if (++entered_ < size()) {
    wait_for_others(lock, rank, call);
    return;
  }
  std::string wrong = call.kind == CollectiveKind::split ? make_groups(lock) : std::string();
  if (!wrong.empty()) {
    world_->fail_all(lock, ErrorCode::invalid_argument, std::move(wrong));
    stop_if_failed(lock, rank, call);
  }
  open(lock);
  if (call.kind == CollectiveKind::barrier) {
    // Nothing will be read: the next cycle may begin before all have woken up.
    std::ranges::fill(calls_, nullptr);
    closed_ = opened_;
  }
}

void LocalGroup::open(const Lock&) {
  entered_ = 0;
  ++opened_;
  opened_at_ = LocalWorld::Clock::now();
  changed_.notify_all();
}

void LocalGroup::wait_for_others(Lock& lock, int rank, const CollectiveCall& call) {
  const std::uint64_t cycle = opened_ + 1;
  const LocalWorld::Clock::time_point start = LocalWorld::Clock::now();
  const bool decided = changed_.wait_until(lock, start + world_->options().time_limit,
                                           [&] { return opened_ >= cycle || world_->failed(lock); });
  if (opened_ >= cycle) return;
  if (!decided) fail_missing(lock, rank, call, LocalWorld::Clock::now() - start);
  // The calls stay, to say who was there; after a failure nobody looks into them.
  world_->throw_failure(lock, fmt::format("rank {} stopped in {}, where it waited for {}",
                                          world_ranks_[index(rank)], place(lock, call), missing_ranks(lock)));
}

void LocalGroup::fail_missing(const Lock& lock, int rank, const CollectiveCall& call,
                              LocalWorld::Clock::duration waited) {
  std::string elsewhere;
  for (int r = 0; r < size(); ++r) {
    if (calls_[index(r)] == nullptr) elsewhere += world_->whereabouts(lock, world_ranks_[index(r)]);
  }
  world_->fail_all(lock, ErrorCode::cancelled,
                   fmt::format("{} did not come to {}: rank {} waited {:.2f} s (the limit is {:.2f} s){}",
                               missing_ranks(lock), place(lock, call), world_ranks_[index(rank)],
                               duration<double>(waited).count(),
                               duration<double>(world_->options().time_limit).count(), elsewhere));
}

void LocalGroup::leave(int rank, std::uint64_t bytes) {
  Lock lock = world_->lock();
  if (world_->options().link_gbps > 0 && bytes > 0) {
    const auto gone = world_->reserve_link(lock, world_ranks_[index(rank)], opened_at_, bytes);
    changed_.wait_until(lock, gone, [&] { return world_->failed(lock); });
  }
  const std::uint64_t cycle = closed_ + 1;
  if (++left_ < size()) {
    changed_.wait(lock, [&] { return closed_ >= cycle; });
    return;
  }
  left_ = 0;
  closed_ = cycle;
  std::ranges::fill(calls_, nullptr);
  changed_.notify_all();
}

void LocalGroup::abort(int rank, std::string_view cause) noexcept {
  const Lock lock = world_->lock();
  try {
    world_->fail_all(lock, ErrorCode::cancelled,
                     fmt::format("rank {} failed: {}", world_ranks_[index(rank)], cause));
  } catch (const std::exception&) {  // no memory for the words
    world_->fail_all(lock, ErrorCode::cancelled, {});
  }
}

void LocalGroup::quit(int rank) noexcept {
  const Lock lock = world_->lock();
  gone_[index(rank)] = true;
  if (entered_ == 0 || world_->failed(lock)) return;  // nobody waits for it
  const auto waiting = std::ranges::find_if(calls_, [](const auto* call) { return call != nullptr; });
  try {
    world_->fail_all(lock, ErrorCode::cancelled,
                     fmt::format("rank {} left group {} before {}", world_ranks_[index(rank)], name_,
                                 describe(**waiting)));
  } catch (const std::exception&) {
    world_->fail_all(lock, ErrorCode::cancelled, {});
  }
}

void LocalGroup::stop_if_failed(const Lock& lock, int rank, const CollectiveCall& call) const {
  if (!world_->failed(lock)) return;
  world_->throw_failure(lock,
                        fmt::format("rank {} met this in {}", world_ranks_[index(rank)], place(lock, call)));
}

void LocalGroup::stop_if_unmatched(const Lock& lock, int rank, const CollectiveCall& call) {
  const Caller mine{call, rank, world_ranks_[index(rank)]};
  for (int r = 0; r < size(); ++r) {
    if (calls_[index(r)] == nullptr) continue;
    const Caller other{*calls_[index(r)], r, world_ranks_[index(r)]};
    const std::string wrong = difference(mine, other);
    if (wrong.empty()) continue;
    world_->fail_all(
        lock, ErrorCode::invalid_argument,
        fmt::format("rank {} is in {}, rank {} in {}: {}; call {} of group {}", mine.world_rank,
                    describe(call), other.world_rank, describe(other.call), wrong, closed_ + 1, name_));
    stop_if_failed(lock, rank, call);
  }
}

void LocalGroup::stop_if_someone_left(const Lock& lock, int rank, const CollectiveCall& call) {
  const auto gone = std::ranges::find(gone_, true) - gone_.begin();
  if (gone == size()) return;
  world_->fail_all(lock, ErrorCode::cancelled,
                   fmt::format("rank {} left group {} before {}",
                               world_ranks_[static_cast<std::size_t>(gone)], name_, describe(call)));
  stop_if_failed(lock, rank, call);
}

// Called by the last rank to enter a split: all lists are there. Returns what is wrong with them, if
// anything.
std::string LocalGroup::make_groups(const Lock& lock) {
  for (int r = 0; r < size(); ++r) {
    const CollectiveCall& mine = *calls_[index(r)];
    for (const int member : mine.ranks) {
      const CollectiveCall& theirs = *calls_[index(member)];
      if (std::ranges::equal(mine.ranks, theirs.ranks) && mine.name == theirs.name) continue;
      return fmt::format("rank {} is in {}, rank {} in {}: different groups; call {} of group {}",
                         world_ranks_[index(r)], describe(mine), world_ranks_[index(member)],
                         describe(theirs), closed_ + 1, name_);
    }
  }
  for (int r = 0; r < size(); ++r) {
    const CollectiveCall& call = *calls_[index(r)];
    if (call.ranks.empty() || call.ranks.front() != r) continue;
    std::vector<int> members;
    for (const int member : call.ranks) members.push_back(world_ranks_[index(member)]);
    const auto group = std::make_shared<LocalGroup>(world_, std::move(members), std::string(call.name));
    world_->add(lock, group);
    for (const int member : call.ranks) made_[index(member)] = group;
  }
  return {};
}

// "rank 3", or "ranks 1 and 3": those of the group that have not entered.
std::string LocalGroup::missing_ranks(const Lock&) const {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    if (calls_[index(r)] == nullptr) missing.push_back(world_ranks_[index(r)]);
  }
  return rank_words(missing);
}

std::string LocalGroup::place(const Lock&, const CollectiveCall& call) const {
  return fmt::format("{}, call {} of group {}", describe(call), closed_ + 1, name_);
}

}  // namespace terrace
