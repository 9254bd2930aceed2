#include "src/engine/rank_threads.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/collectives/rank_words.h"

namespace terrace {
namespace {

[[noreturn]] void rethrow_first(const std::vector<std::exception_ptr>& failures) {
  std::exception_ptr first;
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank]) continue;
    if (!first) first = failures[rank];
    try {
      std::rethrow_exception(failures[rank]);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::cancelled) continue;
      throw Error(error.code(), fmt::format("rank {}: {}", rank, error.what()));
    } catch (const std::exception& error) {
      throw Error(ErrorCode::internal, fmt::format("rank {}: {}", rank, error.what()));
    }
  }
  std::rethrow_exception(first);
}

std::string words_of_first(const std::vector<std::exception_ptr>& failures) {
  try {
    rethrow_first(failures);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown failure";
  }
}

}  // namespace

RankThreads::RankThreads(std::uint32_t ranks, std::chrono::milliseconds time_limit,
                         std::function<void(const std::string&)> stuck)
    : ranks_(ranks), time_limit_(time_limit), stuck_(std::move(stuck)), failures_(ranks), ended_(ranks) {
  if (ranks == 1) return;
  try {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) threads_.emplace_back([this, rank] { loop(rank); });
  } catch (const std::system_error& error) {
    stop();
    fail(ErrorCode::does_not_fit, "a thread for each of {} ranks: the system gives no more threads ({})",
         ranks, error.what());
  }
}

RankThreads::~RankThreads() {
  stop();
}

void RankThreads::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void RankThreads::run(const std::function<void(std::uint32_t)>& body) {
  if (ranks_ == 1) return body(0);
  std::unique_lock lock(mutex_);
  failures_.assign(ranks_, nullptr);
  ended_.assign(ranks_, false);
  body_ = &body;
  running_ = ranks_;
  ++round_;
  changed_.notify_all();
  wait_for_all(lock);
  if (failed()) rethrow_first(failures_);
}

void RankThreads::wait_for_all(std::unique_lock<std::mutex>& lock) {
  const auto all = [&] { return running_ == 0; };
  const auto all_or_failed = [&] { return all() || failed(); };
  changed_.wait(lock, [&] { return running_ < ranks_; });
  if (!changed_.wait_for(lock, time_limit_, all_or_failed)) {
    const std::string what = fmt::format("{} still at work, {:.2f} s after another rank ended",
                                         running_ranks(), std::chrono::duration<double>(time_limit_).count());
    logger()->warn("{}", what);
    if (!changed_.wait_for(lock, patience(), all_or_failed)) give_up(lock, what);
    changed_.wait(lock, all_or_failed);
  }
  if (changed_.wait_for(lock, std::min(time_limit_, std::chrono::milliseconds(1000)), all)) return;
  const std::string what =
      fmt::format("{}; waiting for {} to stop", words_of_first(failures_), running_ranks());
  logger()->error("{}", what);
  if (!changed_.wait_for(lock, patience(), all)) give_up(lock, what);
  changed_.wait(lock, all);
}

// How long a rank that was named is waited for.
std::chrono::milliseconds RankThreads::patience() const {
  return std::min(time_limit_, std::chrono::milliseconds(5000));
}

void RankThreads::give_up(std::unique_lock<std::mutex>& lock, const std::string& what) {
  const auto stuck = std::exchange(stuck_, nullptr);
  if (!stuck) return;
  lock.unlock();
  stuck(what);
  lock.lock();
}

bool RankThreads::failed() const {
  return std::any_of(failures_.begin(), failures_.end(),
                     [](const auto& failure) { return failure != nullptr; });
}

// "rank 3", or "ranks 1 and 3".
std::string RankThreads::running_ranks() const {
  std::vector<std::uint32_t> running;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!ended_[rank]) running.push_back(rank);
  }
  return rank_words(running);
}

void RankThreads::loop(std::uint32_t rank) {
  std::uint64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || round_ > done; });
    if (round_ == done) return;
    done = round_;
    const auto* body = body_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*body)(rank);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failures_[rank] = std::move(failure);
    ended_[rank] = true;
    --running_;
    changed_.notify_all();
  }
}

}  // namespace terrace
