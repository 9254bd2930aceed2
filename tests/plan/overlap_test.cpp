#include "src/plan/overlap.h"

#include <gtest/gtest.h>

#include <random>

#include "terrace/error.h"
#include "tests/plan/program_builder.h"

namespace terrace {
namespace {

class Timed {
 public:
  void op(Lane lane, double start, double end) {
    builder_.op(OpKind::forward, lane);
    times.push_back({start, end});
  }
  const StepProgram& program() const { return builder_.program; }

  std::vector<OpTime> times;

 private:
  ProgramBuilder builder_;
};

TEST(Overlap, CountsWhatAllLanesShareAndWhatAnyHas) {
  Timed timed;
  timed.op(Lane::compute, 0, 10);
  timed.op(Lane::nvme, 5, 20);
  timed.op(Lane::nvme, 6, 8);  // within the other
  timed.op(Lane::optimizer, 7, 9);
  timed.op(Lane::compute, 18, 30);
  timed.op(Lane::optimizer, 19, 40);
  timed.op(Lane::h2d, 0, 0);  // did not run
  const auto both = [&](std::vector<Lane> lanes) { return overlap_us(timed.times, timed.program(), lanes); };
  EXPECT_DOUBLE_EQ(both({Lane::compute, Lane::nvme}), 5 + 2);
  EXPECT_DOUBLE_EQ(both({Lane::nvme, Lane::optimizer, Lane::compute}), 2 + 1);
  EXPECT_DOUBLE_EQ(both({Lane::nvme}), 15);
  EXPECT_DOUBLE_EQ(both({Lane::nvme, Lane::h2d}), 0);
  EXPECT_DOUBLE_EQ(both({}), 0);
  EXPECT_DOUBLE_EQ(busy_us(timed.times, timed.program(), {Lane::compute, Lane::optimizer}), 10 + 22);
  EXPECT_DOUBLE_EQ(busy_us(timed.times, timed.program(), {Lane::h2d}), 0);
  timed.times.pop_back();
  EXPECT_THROW(both({Lane::nvme}), Error);
}

// Against counting microsecond by microsecond.
TEST(Overlap, RandomTimesAreCountedAsOneByOne) {
  std::mt19937 random(3);
  const auto below = [&](int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); };
  for (int round = 0; round < 200; ++round) {
    Timed timed;
    for (int i = 0; i < 12; ++i) {
      const int start = below(50);
      timed.op(static_cast<Lane>(below(3)), start, start + below(12));
    }
    double all = 0, any = 0;
    for (int at = 0; at < 70; ++at) {
      bool seen[3] = {};
      for (std::size_t i = 0; i < timed.times.size(); ++i) {
        const bool in = timed.times[i].start_us <= at && at < timed.times[i].end_us;
        if (in) seen[static_cast<std::size_t>(timed.program().ops[i].lane)] = true;
      }
      all += seen[0] && seen[1] && seen[2] ? 1 : 0;
      any += seen[0] || seen[1] || seen[2] ? 1 : 0;
    }
    const std::vector<Lane> lanes{Lane::compute, Lane::h2d, Lane::d2h};
    EXPECT_DOUBLE_EQ(overlap_us(timed.times, timed.program(), lanes), all);
    EXPECT_DOUBLE_EQ(busy_us(timed.times, timed.program(), lanes), any);
  }
}

}  // namespace
}  // namespace terrace
