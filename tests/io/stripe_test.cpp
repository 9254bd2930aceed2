#include "io/stripe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "src/base/units.h"
#include "terrace/error.h"

namespace terrace {
namespace {

// The one check of every plan: whole on one path, aligned, disjoint, within budget, and counted right.
void check_plan(std::span<const StripePath> paths, std::span<const std::uint64_t> extents,
                const StripePlan& plan) {
  ASSERT_EQ(plan.places.size(), extents.size());
  ASSERT_EQ(plan.used_bytes.size(), paths.size());
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> ranges(paths.size());
  for (std::size_t e = 0; e < extents.size(); ++e) {
    const auto& place = plan.places[e];
    ASSERT_LT(place.path, paths.size());
    ASSERT_EQ(place.offset_bytes % 4096, 0u);
    if (extents[e] > 0) ranges[place.path].push_back({place.offset_bytes, place.offset_bytes + extents[e]});
  }
  for (std::size_t p = 0; p < paths.size(); ++p) {
    ASSERT_LE(plan.used_bytes[p], paths[p].size_bytes);
    std::sort(ranges[p].begin(), ranges[p].end());
    for (std::size_t i = 0; i < ranges[p].size(); ++i) {
      ASSERT_LE(ranges[p][i].second, plan.used_bytes[p]);
      ASSERT_TRUE(i == 0 || ranges[p][i - 1].second <= ranges[p][i].first);
    }
  }
}

TEST(Stripe, PlansAreLegal) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<StripePath> paths(1 + random() % 4);
    for (auto& path : paths) path = {"p", (1 + random() % 64) * kMiB};
    std::vector<std::uint64_t> extents(random() % 50);
    for (auto& bytes : extents) bytes = random() % (256 * kKiB);
    try {
      check_plan(paths, extents, plan_stripes(paths, extents));
    } catch (const Error& error) {
      std::uint64_t room = 0, wanted = 0;
      for (const auto& path : paths) room += path.size_bytes;
      for (const auto bytes : extents) wanted += round_up(bytes, 4096);
      ASSERT_EQ(error.code(), ErrorCode::does_not_fit);
      ASSERT_GT(wanted + paths.size() * 256 * kKiB, room);  // refused only when it is tight
    }
  }
}

TEST(Stripe, RunsOfExtentsUsePathsByTheirSizes) {
  const std::vector<StripePath> paths{{"small", 100 * kMiB}, {"large", 300 * kMiB}};
  const std::vector<std::uint64_t> extents(80, kMiB);
  const StripePlan plan = plan_stripes(paths, extents);
  check_plan(paths, extents, plan);
  EXPECT_EQ(plan.used_bytes[0], 20 * kMiB);
  EXPECT_EQ(plan.used_bytes[1], 60 * kMiB);
  for (std::size_t run = 0; run < 80; run += 8) {  // each eight neighbours too
    const auto small = std::count_if(plan.places.begin() + run, plan.places.begin() + run + 8,
                                     [](const auto& place) { return place.path == 0; });
    EXPECT_EQ(small, 2) << run;
  }
}

TEST(Stripe, FitsToTheLastByteAndNotOneMore) {
  const std::vector<std::uint64_t> extents{1, 4096, 4097};  // 1 + 1 + 2 blocks
  const std::vector<StripePath> exact{{"a", 8192}, {"b", 8192}};
  check_plan(exact, extents, plan_stripes(exact, extents));
  const std::vector<StripePath> less{{"a", 8192}, {"b", 8191}};
  try {
    plan_stripes(less, extents);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_EQ(std::string(error.what()),
              "3 extents of 16384 bytes in all, the largest 8192, do not fit the paths' budgets: a: 8 KiB "
              "(8192 bytes), "
              "b: 8.00 KiB (8191 bytes)");
  }
  EXPECT_THROW(plan_stripes({}, extents), Error);
  EXPECT_TRUE(plan_stripes({}, {}).places.empty());
}

}  // namespace
}  // namespace terrace
