// A map from every 64-bit position to a value, kept as runs. Internal to the checker.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace terrace {

// T is copied when a run is cut in two; T::advance(n) then tells the right part that it begins n positions
// later.
template <typename T>
class RangeMap {
 public:
  RangeMap() { runs_.emplace(0, T{}); }

  // Cost: logarithmic, plus the runs replaced.
  void assign(std::uint64_t begin, std::uint64_t end, T value) {
    if (begin >= end) return;
    split(begin);
    auto last = split(end);
    runs_.erase(runs_.find(begin), last);
    runs_.emplace_hint(last, begin, std::move(value));
  }

  // Calls fn(T&) on each run of [begin, end), cut at its borders.
  template <typename Fn>
  void for_each(std::uint64_t begin, std::uint64_t end, Fn&& fn) {
    if (begin >= end) return;
    auto run = split(begin);
    auto last = split(end);
    for (; run != last; ++run) fn(run->second);
  }

  // Calls fn(run_begin, run_end, const T&) on each run of [begin, end), clipped and advanced; changes
  // nothing.
  template <typename Fn>
  void visit(std::uint64_t begin, std::uint64_t end, Fn&& fn) const {
    if (begin >= end) return;
    for (auto run = std::prev(runs_.upper_bound(begin)); run != runs_.end() && run->first < end; ++run) {
      const auto next = std::next(run);
      const std::uint64_t from = run->first < begin ? begin : run->first;
      const std::uint64_t to = next == runs_.end() || next->first > end ? end : next->first;
      T value = run->second;
      value.advance(from - run->first);
      fn(from, to, std::as_const(value));
    }
  }

 private:
  using Runs = std::map<std::uint64_t, T>;

  typename Runs::iterator split(std::uint64_t at) {
    auto run = std::prev(runs_.upper_bound(at));
    if (run->first == at) return run;
    T right = run->second;
    right.advance(at - run->first);
    return runs_.emplace_hint(std::next(run), at, std::move(right));
  }

  Runs runs_;
};

}  // namespace terrace
