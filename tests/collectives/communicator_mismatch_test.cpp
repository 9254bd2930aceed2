// Calls that do not match are named on every rank, not waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/collectives/ranks.h"
#include "tests/collectives/small_call.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

class CommunicatorMismatch : public CommunicatorSuite {
 protected:
  // Rank `odd` of three makes another call than the others: all three get `why`, with both calls.
  void check_mismatch(const SmallCall& call, const SmallCall& other, const std::string& why) {
    for (int odd = 0; odd < 3; ++odd) {
      run_ranks(3, [&](Communicator& world) {
        const SmallCall& mine = world.rank() == odd ? other : call;
        make_call(world, {});  // one that matches, first
        const std::string error = error_of([&] { make_call(world, mine); });
        const auto is_in = [](int rank, CollectiveKind kind) {
          return fmt_rank(rank) + " is in " + std::string(collective_name(kind)) + " of h.3 (unit ";
        };
        EXPECT_THAT(error, StartsWith("invalid argument: rank "));
        EXPECT_THAT(error, HasSubstr(why));
        EXPECT_THAT(error, HasSubstr("; call 2 of group world; " + fmt_rank(world.rank())));
        // The one who comes second is named first.
        const std::string in = " in " + std::string(collective_name(other.kind)) + " of h.3 (unit ";
        EXPECT_THAT(error, AnyOf(HasSubstr(is_in(odd, other.kind)), HasSubstr(", " + fmt_rank(odd) + in)));
        EXPECT_THAT(error,
                    AnyOf(HasSubstr(is_in((odd + 1) % 3, call.kind)),
                          HasSubstr(is_in((odd + 2) % 3, call.kind)), HasSubstr(is_in(odd, other.kind))));
        // The same from now on.
        const std::string cause = error.substr(0, error.find("; call 2"));
        EXPECT_THAT(error_of([&] { make_call(world, {}); }), StartsWith(cause));
        EXPECT_THAT(error_of([&] { world.split({}, ""); }), StartsWith(cause));
      });
      if (HasFailure()) return;
    }
  }

  static std::string fmt_rank(int rank) { return "rank " + std::to_string(rank); }
};

TEST_P(CommunicatorMismatch, AnotherKind) {
  for (const CollectiveKind kind : kCallKinds) {
    for (const CollectiveKind other : kCallKinds) {
      if (kind != other) check_mismatch({.kind = kind}, {.kind = other}, ": different kinds");
    }
  }
}

TEST_P(CommunicatorMismatch, AnotherUnitOrStep) {
  for (const CollectiveKind kind : kCallKinds) {
    check_mismatch({.kind = kind}, {.kind = kind, .unit = 5}, ": different units");
    check_mismatch({.kind = kind}, {.kind = kind, .step = 8}, ": different steps");
  }
}

TEST_P(CommunicatorMismatch, AnotherElementType) {
  for (const CollectiveKind kind : kCallKinds) {
    if (kind == CollectiveKind::barrier || kind == CollectiveKind::all_reduce) continue;
    check_mismatch({.kind = kind}, {.kind = kind, .type = WireType::bf16}, ": different element types");
  }
}

TEST_P(CommunicatorMismatch, OtherLengths) {
  for (const CollectiveKind kind :
       {CollectiveKind::all_gather, CollectiveKind::gather, CollectiveKind::reduce_scatter}) {
    check_mismatch({.kind = kind}, {.kind = kind, .numel = 6}, ": part 0: ");
    check_mismatch({.kind = kind}, {.kind = kind, .gap = 1}, ": part 1: 5 elements at ");
  }
  for (const CollectiveKind kind : {CollectiveKind::broadcast, CollectiveKind::all_reduce}) {
    check_mismatch({.kind = kind}, {.kind = kind, .numel = 6}, ": different numbers of elements");
  }
  check_mismatch({.kind = CollectiveKind::all_to_all}, {.kind = CollectiveKind::all_to_all, .numel = 6},
                 ", which expects ");
}

TEST_P(CommunicatorMismatch, AnotherRootOperationOrRound) {
  using enum CollectiveKind;
  check_mismatch({.kind = broadcast}, {.kind = broadcast, .root = 1}, ": different roots");
  check_mismatch({.kind = gather}, {.kind = gather, .root = 2}, ": different roots");
  check_mismatch({.kind = all_reduce}, {.kind = all_reduce, .op = ReduceOp::max}, ": different operations");
  check_mismatch({.kind = reduce_scatter}, {.kind = reduce_scatter, .started = true},
                 ": one rank starts its sum, the other goes on with it");
  check_mismatch({.kind = reduce_scatter}, {.kind = reduce_scatter, .last = true},
                 ": the last round on one rank only");
}

TEST_P(CommunicatorMismatch, PlacesMayDifferInAllToAll) {
  run_ranks(3, [](Communicator& world) {
    make_call(world, {.kind = CollectiveKind::all_to_all, .gap = static_cast<std::uint64_t>(world.rank())});
  });
}

TEST_P(CommunicatorMismatch, TheMessageInFull) {
  run_ranks(2, [](Communicator& world) {
    const SmallCall call =
        world.rank() == 0
            ? SmallCall{.kind = CollectiveKind::broadcast, .numel = 512}
            : SmallCall{.kind = CollectiveKind::all_gather, .type = WireType::bf16, .numel = 512};
    const std::string error = error_of([&] { make_call(world, call); });
    const std::string gather = "all_gather of h.3 (unit 4, step 7, 1024 elements of bf16)";
    const std::string broadcast = "broadcast of h.3 (unit 4, step 7, 1024 elements of fp32 from root 0)";
    EXPECT_THAT(error, AnyOf(StartsWith("invalid argument: rank 1 is in " + gather + ", rank 0 in " +
                                        broadcast + ": different kinds; call 1 of group world; rank "),
                             StartsWith("invalid argument: rank 0 is in " + broadcast + ", rank 1 in " +
                                        gather + ": different kinds; call 1 of group world; rank ")));
  });
}

TEST_P(CommunicatorMismatch, GroupsThatDoNotFit) {
  struct Lists {
    std::vector<std::vector<int>> of_rank;
    std::vector<std::string> names;
  };
  const Lists cases[] = {
      {{{0, 1}, {0, 1, 2}, {0, 1, 2}}, {"a", "a", "a"}},  // rank 2 counts on 0
      {{{0, 1}, {1, 0}, {2}}, {"a", "a", "b"}},           // another order
      {{{0, 1}, {0, 1}, {2}}, {"a", "b", "c"}},           // another name
      {{{0, 1}, {}, {2}}, {"a", "", "c"}},                // rank 1 does not know
  };
  for (const Lists& lists : cases) {
    run_ranks(3, [&](Communicator& world) {
      const std::string error =
          error_of([&] { world.split(lists.of_rank[at(world.rank())], lists.names[at(world.rank())]); });
      EXPECT_THAT(error, StartsWith("invalid argument: rank "));
      EXPECT_THAT(error, HasSubstr("different groups; call 1 of group world"));
      EXPECT_THAT(error, HasSubstr("split (step 0, group a of ranks [0 1"));
    });
  }
}

// Ranks in messages are the world's, also those of a group in another order.
TEST_P(CommunicatorMismatch, InAGroupAndItStopsThoseOutsideIt) {
  run_ranks(4, [](Communicator& world) {
    const int r = world.rank();
    const auto group =
        world.split(r < 2 ? std::vector<int>{1, 0} : std::vector<int>{3, 2}, r < 2 ? "a" : "b");
    std::string error;
    if (r >= 2) {
      error = error_of([&] { make_call(*group, {.unit = static_cast<std::uint32_t>(r)}); });
    } else if (r == 0) {
      error = error_of([&] { make_call(world, {}); });
    } else {
      error = error_of([&] { make_call(*group, {}); });
    }
    EXPECT_THAT(error, AnyOf(HasSubstr("rank 2 is in barrier of h.3 (unit 2, step 7), rank 3 in barrier"),
                             HasSubstr("rank 3 is in barrier of h.3 (unit 3, step 7), rank 2 in barrier")));
    EXPECT_THAT(error, HasSubstr("call 1 of group b; rank " + std::to_string(r)));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorMismatch, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
