#include "src/engine/rank_threads.h"

#include <exception>
#include <system_error>

#include "src/base/fail.h"

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

}  // namespace

RankThreads::RankThreads(std::uint32_t ranks) : ranks_(ranks), failures_(ranks) {
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
  body_ = &body;
  running_ = ranks_;
  ++round_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return running_ == 0; });
  for (const std::exception_ptr& failure : failures_) {
    if (failure) rethrow_first(failures_);
  }
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
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace terrace
