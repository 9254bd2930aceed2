// The ledger's lines beside the arenas: never less than what is compiled, known before it is, refused with
// the rest; and the warm-up prepares all that the model multiplies.
#include "src/train/host_overhead.h"

#include <gmock/gmock.h>
#include <malloc.h>

#include <random>

#include "src/base/parallel_for.h"
#include "src/base/units.h"
#include "src/model/describe.h"
#include "src/model/product_shapes.h"
#include "src/train/setup.h"
#include "tests/model/model_runner.h"

namespace terrace {
namespace {

Config small_config() {
  Config config;
  config.model.layers = 3;
  config.model.width = 64;
  config.model.heads = 2;
  config.model.context = 32;
  config.train.micro_batch = 2;
  config.store.path = "store";
  config.tiers.nvme = {{"nvme", kGiB}};
  config.tiers.device_bytes = config.tiers.host_bytes = kGiB;
  config.compute.threads = 2;
  return config;
}

ModelShape shape_of(const Config& config) {
  return describe(model_spec(config), config.train.micro_batch, compute_dtype(config), grad_dtype(config));
}

Plan plan_of(const Config& config) {
  return make_plan(plan_request(config, shape_of(config), config.placement.chunk_numel, 0));
}

void place(Config& config, int data_class, const PlacementShares& where) {
  PlacementShares* const classes[] = {&config.placement.parameters, &config.placement.gradients,
                                      &config.placement.optimizer_state, &config.placement.activations};
  for (int c = 0; c < 4; ++c) {
    if (data_class == c || data_class == 4) *classes[c] = where;
  }
}

TEST(HostOverhead, HoldsEveryCompiledProgram) {
  const PlacementShares placements[] = {{},
                                        {false, 1, 0, 0},
                                        {false, 0, 1, 0},
                                        {false, 0, 0, 1},
                                        {false, 0, 0.5, 0.5},
                                        {false, 0.5, 0.5, 0},
                                        {false, 0.34, 0.33, 0.33}};
  double most = 0;
  for (const std::uint32_t contributions : {1u, 2u, 4u}) {
    for (const std::uint64_t chunk_numel : {4096u, 16384u, 1u << 20}) {
      for (const double clip_norm : {0.0, 1.0}) {
        for (const auto& placement : placements) {
          for (int data_class = 0; data_class < 5; ++data_class) {
            Config config = small_config();
            config.train.micro_batches = contributions;
            config.placement.chunk_numel = chunk_numel;
            config.optimizer.clip_norm = clip_norm;
            place(config, data_class, placement);
            const Plan plan = plan_of(config);
            ASSERT_TRUE(plan.fits) << refusal(plan);
            const HostOverhead overhead = host_overhead(config, shape_of(config), chunk_numel);
            EXPECT_LE(program_bytes(plan), overhead.program_bytes)
                << contributions << " contributions, chunks of " << chunk_numel << ", clip " << clip_norm
                << ", class " << data_class << " on " << placement.device << " " << placement.host << " "
                << placement.nvme;
            most = std::max(
                most, static_cast<double>(program_bytes(plan)) / static_cast<double>(overhead.program_bytes));
          }
        }
      }
    }
  }
  EXPECT_GT(most, 0.5) << "far more than any program takes";
}

// With units that stay whole on every rank the renewals of a step are counted too.
TEST(HostOverhead, HoldsTheProgramsOfRanksThatKeepUnitsWhole) {
  for (const char* stage : {"2", "3", "hybrid_shard"}) {
    for (const std::uint64_t below : {0u, 65u, 1u << 20}) {
      for (const double clip_norm : {0.0, 1.0}) {
        for (const PlacementShares& placement :
             {PlacementShares{false, 1, 0, 0}, PlacementShares{false, 0, 0, 1}}) {
          Config config = small_config();
          config.ranks.count = 4;
          config.ranks.stage = stage;
          config.ranks.persist_below_numel = below;
          config.train.micro_batches = 4;
          config.placement.chunk_numel = 4096;
          config.optimizer.clip_norm = clip_norm;
          place(config, 4, placement);
          std::uint64_t bytes = 0;
          for (const Plan& plan :
               make_plans(plan_request(config, shape_of(config), config.placement.chunk_numel, 0))) {
            ASSERT_TRUE(plan.fits) << refusal(plan);
            bytes += program_bytes(plan);
          }
          EXPECT_LE(bytes, host_overhead(config, shape_of(config), 4096).program_bytes)
              << stage << ", below " << below << ", clip " << clip_norm;
        }
      }
    }
  }
}

TEST(HostOverhead, IsPartOfTheHostBudget) {
  const Config config = small_config();
  const Plan plan = plan_of(config);
  const HostOverhead overhead = host_overhead(config, shape_of(config), config.placement.chunk_numel);
  EXPECT_EQ(plan.ledger.total(Tier::host), plan.arena_bytes[1] + overhead.total());
  EXPECT_EQ(plan.ledger.total(Tier::device), plan.arena_bytes[0]);
  const std::string text = to_text(plan.ledger);
  for (const LedgerLine& line : overhead.lines()) {
    EXPECT_GT(line.bytes, 0u) << line.name;
    EXPECT_THAT(text, ::testing::HasSubstr(line.name));
  }
}

// What a refusal names is accepted, and a byte less is not: the lines do not depend on the budgets.
TEST(HostOverhead, TheLeastBudgetsAreExact) {
  for (int data_class = 0; data_class < 5; ++data_class) {
    Config config = small_config();
    config.train.micro_batches = 2;
    config.placement.chunk_numel = 8192;
    place(config, data_class, {false, 0, 0.5, 0.5});
    config.tiers.device_bytes = config.tiers.host_bytes = 1;
    const Plan refused = plan_of(config);
    ASSERT_FALSE(refused.fits);
    config.tiers.device_bytes = refused.least_bytes[0];
    config.tiers.host_bytes = refused.least_bytes[1];
    EXPECT_TRUE(plan_of(config).fits);
    config.tiers.host_bytes -= 1;
    EXPECT_FALSE(plan_of(config).fits);
  }
}

TEST(HostOverhead, GrowsWithWhatItCounts) {
  const Config config = small_config();
  const auto of = [](const Config& changed) {
    return host_overhead(changed, shape_of(changed), changed.placement.chunk_numel);
  };
  const HostOverhead base = of(config);
  Config changed = config;
  changed.compute.threads = 16;
  EXPECT_GT(of(changed).library_bytes, base.library_bytes + 14 * kMiB);
  EXPECT_EQ(of(changed).scratch_bytes, 8 * base.scratch_bytes);
  changed = config;
  changed.train.micro_batches = 8;
  EXPECT_EQ(of(changed).token_bytes - base.token_bytes, 7u * 2 * 32 * 8);
  EXPECT_GT(of(changed).program_bytes, 3 * base.program_bytes);
  changed = config;
  changed.placement.chunk_numel = 4096;
  EXPECT_GT(of(changed).table_bytes, base.table_bytes);
  EXPECT_GT(of(changed).program_bytes, base.program_bytes);
  changed = config;
  changed.io.depth = 1024;
  EXPECT_GT(of(changed).table_bytes, base.table_bytes + 4 * kMiB);
}

struct Model {
  std::uint32_t context, samples, vocabulary;
  bool tied;
  DType compute, grad;
};

// After the warm-up a step prepares nothing: the executor's memory and the heap stay as they are.
TEST(WarmUp, PreparesEveryProductOfTheModel) {
  set_parallel_threads(2);
  const Model models[] = {
      {32, 2, 96, true, DType::bf16, DType::bf16},
      {200, 2, 500, true, DType::f32, DType::f32},     // a last tile of queries that is not whole
      {128, 9, 300, false, DType::bf16, DType::bf16},  // more rows than the head takes at once
      {128, 9, 300, false, DType::bf16, DType::f32},
      {64, 3, 700, false, DType::f32, DType::bf16},
      {200, 2, 500, true, DType::f16, DType::f16},
      {128, 9, 300, false, DType::f16, DType::f32}};
  for (const Model& model : models) {
    SCOPED_TRACE(&model - models);
    ModelSpec spec;
    spec.layers = 2;
    spec.width = 96;
    spec.heads = 3;
    spec.context = model.context;
    spec.vocabulary = model.vocabulary;
    spec.tied_head = model.tied;
    testing::ModelRunner runner(spec, model.samples, model.compute, model.grad);
    std::mt19937 random(1);
    std::vector<std::uint32_t> tokens(model.samples * spec.context);
    std::vector<std::int32_t> targets(tokens.size());
    for (auto& token : tokens) token = random() % spec.vocabulary;
    for (auto& target : targets) target = static_cast<std::int32_t>(random() % spec.vocabulary);
    runner.executor().set_contribution(0, tokens, targets);
    runner.executor().set_divisor(tokens.size());
    runner.executor().warm_up();
    const std::size_t library_bytes = runner.executor().library_bytes();
    const auto heap_bytes = [] { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; };
    const std::size_t before = heap_bytes();
    runner.train(true);
    runner.evaluate();
    const std::size_t work = heap_bytes() - before;  // the runner's workspace
    EXPECT_EQ(runner.executor().library_bytes(), library_bytes);
    std::size_t workspace = 0;
    for (const UnitShape& unit : runner.shape().units) {
      workspace = std::max({workspace, unit.forward_workspace_bytes, unit.backward_workspace_bytes});
    }
    EXPECT_LT(work, workspace + 6 * kKiB) << "a product that was not prepared takes about that a thread";
  }
  set_parallel_threads(0);
}

}  // namespace
}  // namespace terrace
