#include "src/collectives/mpi_world.h"

#include <algorithm>
#include <utility>

#include "src/base/fail.h"
#include "src/collectives/mpi_communicator.h"

namespace terrace {

using std::chrono::duration;

MpiWorld::MpiWorld(MpiEngine& engine, const CommunicatorOptions& options)
    : engine_(engine), options_(options) {
  const MpiEngine::Lock lock = engine_.lock();
  number_ = engine_.open_world(lock, *this, options.time_limit);
  if (const auto early = engine_.take_early_failure(lock, number_)) fail(lock, *early);
  engine_.post(
      lock,
      encode({.kind = ControlMessage::Kind::hello, .world = number_, .rank = rank(), .options = options}));
}

MpiWorld::~MpiWorld() {
  const MpiEngine::Lock lock = engine_.lock();
  engine_.close_world(lock, number_, failure_.has_value());
  engine_.post(lock, encode({.kind = ControlMessage::Kind::close, .world = number_, .rank = rank()}));
}

std::chrono::milliseconds MpiWorld::patience() const {
  return options_.time_limit + kMpiGrace;
}

void MpiWorld::add(MpiGroup& group) {
  const MpiEngine::Lock lock = engine_.lock();
  groups_[group.number] = &group;
}

void MpiWorld::remove(MpiGroup& group) noexcept {
  const MpiEngine::Lock lock = engine_.lock();
  groups_.erase(group.number);
  engine_.post(
      lock,
      encode({.kind = ControlMessage::Kind::leave, .world = number_, .group = group.number, .rank = rank()}));
}

ControlMessage MpiWorld::enter(MpiGroup& group, const CollectiveCall& call) {
  std::vector<std::byte> message = encode(
      {.kind = ControlMessage::Kind::enter, .world = number_, .group = group.number, .rank = rank()}, &call);
  MpiEngine::Lock lock = engine_.lock();
  if (failure_) throw_failure(lock, group, call, false);
  check(!group.entering, "two threads of rank {} in group {} at once", rank(), group.name);
  group.entering = true;
  group.opening.reset();
  engine_.post(lock, std::move(message));
  const auto start = MpiEngine::Clock::now();
  const bool answered = engine_.wait_until(lock, start + patience(),
                                           [&] { return group.opening.has_value() || failure_.has_value(); });
  if (group.opening) {
    ++group.opened;
    return std::move(*group.opening);
  }
  if (!answered) {
    fail(lock, {.code = ErrorCode::cancelled,
                .text = fmt::format(
                    "rank 0 did not answer in {}: rank {} waited {:.2f} s (the limit is {:.2f} s)",
                    place(group, call), rank(), duration<double>(MpiEngine::Clock::now() - start).count(),
                    duration<double>(options_.time_limit).count())});
  }
  throw_failure(lock, group, call, true);
}

void MpiWorld::leave(MpiGroup& group, MpiEngine::Clock::time_point from, std::uint64_t bytes) {
  MpiEngine::Lock lock = engine_.lock();
  if (options_.link_gbps > 0 && bytes > 0) {
    const duration<double> time(static_cast<double>(bytes) / (options_.link_gbps * 1e9));
    link_free_ = std::max(link_free_, from) + std::chrono::ceil<MpiEngine::Clock::duration>(time);
    engine_.wait_until(lock, link_free_, [&] { return failure_.has_value(); });
  }
  group.entering = false;
}

void MpiWorld::abort(std::string_view cause) noexcept {
  const MpiEngine::Lock lock = engine_.lock();
  engine_.note_failure(lock, number_);
  engine_.post(lock, encode({.kind = ControlMessage::Kind::abort,
                             .world = number_,
                             .rank = rank(),
                             .text = std::string(cause)}));
}

void MpiWorld::receive(const MpiEngine::Lock& lock, const ControlMessage& message) {
  if (message.kind == ControlMessage::Kind::failed) return fail(lock, message);
  const auto group = groups_.find(message.group);
  if (group != groups_.end()) group->second->opening = message;
}

void MpiWorld::fail(const MpiEngine::Lock& lock, const ControlMessage& failure) {
  if (failure_) return;
  failure_ = failure;
  engine_.note_failure(lock, number_);
}

void MpiWorld::throw_failure(const MpiEngine::Lock&, const MpiGroup& group, const CollectiveCall& call,
                             bool entered) const {
  const auto& lists = failure_->waited_for;
  const auto mine = std::ranges::find(lists, group.number, [](const auto& list) { return list.first; });
  const std::string where = place(group, call);
  if (entered && mine != lists.end() && !mine->second.empty()) {
    terrace::fail(failure_->code, "{}; rank {} stopped in {}, where it waited for {}", failure_->text, rank(),
                  where, mine->second);
  }
  terrace::fail(failure_->code, "{}; rank {} met this in {}", failure_->text, rank(), where);
}

std::string MpiWorld::place(const MpiGroup& group, const CollectiveCall& call) const {
  return fmt::format("{}, call {} of group {}", describe(call), group.opened + 1, group.name);
}

}  // namespace terrace
