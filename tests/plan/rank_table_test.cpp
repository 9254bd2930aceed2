#include "src/plan/rank_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "src/base/units.h"
#include "terrace/error.h"
#include "tests/plan/tiny_models.h"

namespace terrace {
namespace {

using testing_models::tiny_model;

std::vector<RankShape> all_shapes() {
  std::vector<RankShape> shapes;
  for (std::uint32_t n = 1; n <= 9; ++n) {
    for (const Stage stage : {Stage::replicated, Stage::optimizer, Stage::gradients, Stage::parameters}) {
      shapes.push_back({stage, n, 1});
    }
    for (std::uint32_t r = 2; r <= n; ++r) {
      if (n % r == 0) shapes.push_back({Stage::parameters, n, r});
    }
  }
  return shapes;
}

// What the words of rank_table.h say, counted element by element (in blocks).
TEST(RankTable, EveryChunkHasOneOwnerAndOneHolderInEachReplica) {
  const ModelShape model = tiny_model(3, true);
  const auto units = static_cast<std::uint32_t>(model.units.size());
  for (const RankShape& shape : all_shapes()) {
    for (const std::uint32_t cut : {1u, shape.ranks}) {
      const auto chunks = cut_chunks(model, 8192, cut);
      const RankTable table(shape, chunks, units);
      for (std::uint32_t c = 0; c < chunks.size(); ++c) {
        std::set<std::uint32_t> replicas;
        std::uint32_t owners = 0, holders = 0;
        for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
          const NumelRange own = table.own_range(chunks[c].unit, rank),
                           shard = table.shard_range(chunks[c].unit, rank);
          const auto inside = [&](const NumelRange& range) {
            return range.begin <= chunks[c].begin && chunks[c].begin + chunks[c].numel <= range.end;
          };
          EXPECT_EQ(inside(own), table.owner(c) == rank);
          EXPECT_EQ(inside(shard), table.holds(rank, c));
          EXPECT_EQ(table.keeps_parameters(rank, c), table.holds(rank, c) ||
                                                         shape.stage == Stage::optimizer ||
                                                         shape.stage == Stage::gradients);
          owners += table.owner(c) == rank ? 1 : 0;
          if (!table.holds(rank, c)) continue;
          ++holders;
          replicas.insert(rank / shape.shard_size());
        }
        EXPECT_EQ(owners, 1u);
        EXPECT_EQ(holders, shape.replicate_size());
        EXPECT_EQ(replicas.size(), shape.replicate_size());
      }
    }
  }
}

TEST(RankTable, GroupsGatherWhatTheirRangesSay) {
  const ModelShape model = tiny_model(3, true);
  const auto units = static_cast<std::uint32_t>(model.units.size());
  for (const RankShape& shape : all_shapes()) {
    const RankTable table(shape, cut_chunks(model, 4096, shape.ranks), units);
    for (std::uint32_t u = 0; u < units; ++u) {
      for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
        EXPECT_EQ(table.rank_of(u, table.part_of(u, rank)), rank);
        std::uint64_t whole = 0, shard = 0;
        for (const std::uint32_t other : table.shard_group(rank))
          whole += table.shard_range(u, other).numel();
        for (const std::uint32_t other : table.replicate_group(rank)) {
          shard += table.own_range(u, other).numel();
          EXPECT_EQ(table.shard_range(u, other), table.shard_range(u, rank));
        }
        EXPECT_EQ(whole, model.units[u].padded_numel());
        EXPECT_EQ(shard, table.shard_range(u, rank).numel());
        EXPECT_EQ(table.shard_group(rank).size() * table.replicate_group(rank).size(), shape.ranks);
      }
    }
  }
}

TEST(RankTable, SmallUnitsAreThoseOfSmallTensorsAlone) {
  ModelShape model = tiny_model(1, true);  // 9000 and 700; 20000 and 33; 64
  UnitShape empty, zero;
  zero.tensors = {{"z", 0, 0}};
  model.units.insert(model.units.end(), {empty, zero});
  const auto small = [&](std::uint64_t below) { return small_units(model, below); };
  using Flags = std::vector<bool>;
  EXPECT_EQ(small(0), Flags(5, false));
  EXPECT_EQ(small(1), (Flags{false, false, false, true, true}));
  EXPECT_EQ(small(64), small(1));
  EXPECT_EQ(small(65), (Flags{false, false, true, true, true}));
  EXPECT_EQ(small(9000), small(65));
  EXPECT_EQ(small(9001), (Flags{true, false, true, true, true}));
  EXPECT_EQ(small(20000), small(9001));
  EXPECT_EQ(small(20001), Flags(5, true));
}

// Kept whole: every rank has the parameters; who owns, folds and holds is as it was.
TEST(RankTable, KeptUnitsChangeWhoKeepsParametersAlone) {
  const ModelShape model = tiny_model(2, false);
  const auto units = static_cast<std::uint32_t>(model.units.size());
  for (const RankShape& shape : all_shapes()) {
    const auto chunks = cut_chunks(model, 4096, shape.ranks);
    const RankTable without(shape, chunks, units);
    const RankTable table(shape, chunks, units, {false, true, false, true});
    const bool sharded = shape.stage == Stage::parameters && shape.shard_size() > 1;
    const bool all = shape.stage == Stage::optimizer || shape.stage == Stage::gradients;
    for (std::uint32_t u = 0; u < units; ++u) {
      EXPECT_EQ(table.keeps_whole(u), all || (sharded && u % 2 == 1));
      EXPECT_EQ(without.keeps_whole(u), all);
      for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
        EXPECT_EQ(table.own_range(u, rank), without.own_range(u, rank));
        EXPECT_EQ(table.shard_range(u, rank), without.shard_range(u, rank));
      }
    }
    for (std::uint32_t c = 0; c < chunks.size(); ++c) {
      EXPECT_EQ(table.owner(c), without.owner(c));
      for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
        EXPECT_EQ(table.holds(rank, c), without.holds(rank, c));
        EXPECT_EQ(table.keeps_parameters(rank, c), table.holds(rank, c) || table.keeps_whole(chunks[c].unit));
      }
    }
  }
}

// Units that cannot be cut evenly do not all fall to one rank.
TEST(RankTable, WhatCannotBeCutIsSpread) {
  ModelShape model;
  for (int u = 0; u < 12; ++u) {
    UnitShape unit;
    unit.tensors = {{"w" + std::to_string(u), 100, 0}};
    model.units.push_back(unit);
  }
  const auto chunks = cut_chunks(model, 4096, 4);
  const RankTable table({Stage::parameters, 4, 1}, chunks, model.units.size());
  std::vector<int> owned(4);
  for (std::uint32_t c = 0; c < chunks.size(); ++c) ++owned[table.owner(c)];
  EXPECT_EQ(owned, (std::vector<int>{3, 3, 3, 3}));
}

TEST(RankTable, RefusesMeshesThatAreNone) {
  const auto chunks = cut_chunks(tiny_model(1, false), 4096, 4);
  EXPECT_THROW(RankTable({Stage::parameters, 4, 3}, chunks, 3), Error);
  EXPECT_THROW(RankTable({Stage::gradients, 4, 2}, chunks, 3), Error);
  EXPECT_THROW(RankTable({Stage::parameters, 0, 1}, chunks, 3), Error);
}

// Cut for several ranks: a multiple of them where there are blocks enough, as equal as blocks allow.
TEST(ChunkTable, CutForRanksIsEven) {
  const ModelShape model = tiny_model(2, false);
  for (const std::uint32_t ranks : {2u, 3u, 4u, 7u}) {
    for (const std::uint64_t chunk_numel : {4096u, 8192u, 65536u}) {
      const auto chunks = cut_chunks(model, chunk_numel, ranks);
      for (std::uint32_t u = 0; u < model.units.size(); ++u) {
        std::uint64_t count = 0, next = 0, least = ~std::uint64_t{0}, most = 0;
        for (const Chunk& chunk : chunks) {
          if (chunk.unit != u) continue;
          EXPECT_EQ(chunk.begin, next);
          next += chunk.numel;
          ++count;
          least = std::min(least, chunk.numel);
          most = std::max(most, chunk.numel);
        }
        EXPECT_EQ(next, model.units[u].padded_numel());
        EXPECT_LE(most, chunk_numel);
        EXPECT_LE(most - least, kBlockNumel);
        const std::uint64_t blocks = next / kBlockNumel;
        EXPECT_TRUE(count % ranks == 0 || count == blocks) << count;
      }
    }
  }
}

}  // namespace
}  // namespace terrace
