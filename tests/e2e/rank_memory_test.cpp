// Contract C2 with several ranks in one process: memory stays within the ledger of all of them, nothing
// grows, and what ranks send is what their programs say.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <mutex>

#include "src/base/units.h"
#include "src/model/describe.h"
#include "src/optimizer/exact_sum.h"
#include "src/train/batches.h"
#include "src/train/session.h"
#include "src/train/setup.h"
#include "tests/e2e/watched_program.h"

namespace terrace::e2e {
namespace {

namespace fs = std::filesystem;

struct Mesh {
  std::uint32_t ranks;
  const char* stage;
  std::uint32_t replicas = 0;
  std::uint64_t persist_below_numel = 0;
  const char* reduce = "each";
  const char* hybrid_reduce = "flat";
};

constexpr Mesh kMeshes[] = {{2, "0"},
                            {4, "0"},
                            {2, "1"},
                            {4, "1"},
                            {2, "2"},
                            {4, "2"},
                            {2, "3"},
                            {4, "3"},
                            {4, "hybrid_shard", 2},
                            {4, "3", 0, 129},  // the last unit stays whole
                            {4, "hybrid_shard", 2, 1 << 20},
                            {2, "0", 0, 0, "last"},
                            {4, "3", 0, 0, "grouped"},
                            {4, "hybrid_shard", 2, 0, "each", "hierarchical"}};

std::string name_of(const Mesh& mesh) {
  const std::string kept =
      mesh.persist_below_numel > 0 ? "_kept_below_" + std::to_string(mesh.persist_below_numel) : "";
  const auto order = [](const std::string& value, const char* usual) {
    return value == usual ? "" : "_" + value;
  };
  return std::to_string(mesh.ranks) + "_stage_" + mesh.stage + kept + order(mesh.reduce, "each") +
         order(mesh.hybrid_reduce, "flat");
}
std::ostream& operator<<(std::ostream& out, const Mesh& mesh) {
  return out << name_of(mesh);
}

Config on(Config config, const Mesh& mesh) {
  config.ranks.count = mesh.ranks;
  config.ranks.stage = mesh.stage;
  config.ranks.replicas = mesh.replicas;
  config.ranks.persist_below_numel = mesh.persist_below_numel;
  config.ranks.reduce = mesh.reduce;
  config.ranks.hybrid_reduce = mesh.hybrid_reduce;
  return config;
}

std::vector<Plan> planned(const Config& config) {
  const ModelShape model =
      describe(model_spec(config), config.train.micro_batch, compute_dtype(config), grad_dtype(config));
  std::vector<Plan> plans = make_plans(plan_request(config, model, config.placement.chunk_numel, 0));
  EXPECT_TRUE(plans[0].fits) << refusal(plans[0]);
  return plans;
}

// Devices are memory of this process too: all of them, though the ledger has the line of the fullest.
std::uint64_t ledger_bytes(const std::vector<Plan>& plans) {
  std::uint64_t devices = 0, fullest = 0;
  for (const Plan& plan : plans) {
    devices += plan.arena_bytes[0];
    fullest = std::max(fullest, plan.arena_bytes[0]);
  }
  return plans[0].ledger.total(Tier::device) - fullest + devices + plans[0].ledger.total(Tier::host);
}

class RankMemoryTest : public testing::TestWithParam<Mesh> {
 protected:
  // 0.9 million parameters; states take 10 MiB.
  Config config() {
    Config config = on(workspace_.config_on_disk(), GetParam());
    config.model.layers = 4;
    config.model.width = 128;
    config.model.heads = 4;
    config.model.context = 64;
    config.train.micro_batch = 2;
    config.train.micro_batches = 5;
    config.train.steps = 2;
    config.tiers.device_bytes = config.tiers.host_bytes = kGiB;
    config.tiers.nvme[0].size_bytes = kGiB;
    config.commit.every_steps = 2;
    return config;
  }

  Workspace workspace_;
  TrainProgram program_{workspace_.path()};
};

TEST_P(RankMemoryTest, StaysWithinTheLedgerOfAllRanks) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  static constexpr struct {
    const char* name;
    double device, host, nvme;
    std::uint64_t chunk_numel;
  } kPlacements[] = {
      {"device", 1, 0, 0, 65536}, {"nvme", 0, 0, 1, 16384}, {"thirds", 0.34, 0.33, 0.33, 1u << 18}};
  for (const auto& placement : kPlacements) {
    SCOPED_TRACE(placement.name);
    Config config = this->config();
    config.placement.chunk_numel = placement.chunk_numel;
    place_all(config, shares(placement.device, placement.host, placement.nvme));
    const std::vector<Plan> plans = planned(config);
    const std::uint64_t ledger = ledger_bytes(plans);
    std::uint64_t locked = 0;
    for (const Plan& plan : plans) locked += plan.arena_bytes[1];
    const Watched watched = watch(program_, workspace_.path(), config);
    ASSERT_EQ(watched.outcome.code, 0) << watched.outcome;
    const std::uint64_t peak = watched.most.resident_bytes;
    const auto mebibytes = [](std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; };
    std::cout << std::fixed << std::setprecision(1) << std::setw(7) << placement.name << ": ledger "
              << mebibytes(ledger) << " MiB, peak " << mebibytes(peak) << " MiB, page-locked "
              << mebibytes(watched.most.locked_bytes) << " of " << mebibytes(locked) << " MiB\n";
    EXPECT_LE(peak, ledger + ledger / 100 + 16 * kMiB);
    EXPECT_GE(peak + 64 * kMiB, ledger / 10 * 9) << "the ledger promises far more than there is";
    if (watched.outcome.err.find("is not page-locked") == std::string::npos) {
      EXPECT_NEAR(static_cast<double>(watched.most.locked_bytes), static_cast<double>(locked),
                  static_cast<double>(locked) / 100);
    }
    EXPECT_EQ(told_peak(program_.metrics_path())["ledger_bytes"], ledger) << "the run's ledger is the plans'";
    fs::remove_all(fs::path(config.store.path).parent_path());
  }
}

// What the groups counted over a run is what the programs say, the numbers of the verdict beside.
TEST_P(RankMemoryTest, RanksSendWhatTheirProgramsSay) {
  Config config = this->config();
  config.model.width = 64;
  config.placement.chunk_numel = 16384;
  const TokenFile tokens(config.data.path + "/" + kTrainTokensName);
  const DistributedSampler sampler(tokens, train_samples(config));
  std::mutex mutex;
  std::uint64_t ran_bytes = 0, verdicts = 0;  // of rank 0
  SessionOptions options;
  options.before_operation = [&](std::uint32_t rank, const Op& op) {
    if (rank != 0 || op.lane != Lane::collective) return;
    const std::lock_guard lock(mutex);
    if (op.kind == OpKind::grad_stats) {
      ++verdicts;
    } else {
      ran_bytes += op.bytes;
    }
  };
  Session session(config, options);
  Engine& engine = session.engine();
  EXPECT_EQ(engine.ledger_bytes(), ledger_bytes(planned(config)));
  session.load_step(sampler);
  const auto numbers_bytes = ExactSum::kNumbers * sizeof(std::uint64_t) * (GetParam().ranks - 1);
  const auto said_bytes = [&](ProgramKind kind) {
    return lane_bytes(engine.plan().program(kind))[static_cast<std::size_t>(Lane::collective)];
  };
  EXPECT_EQ(engine.sent_bytes(), said_bytes(ProgramKind::materialize));
  StepInputs inputs;
  inputs.groups = groups_at(config, 1e-3);
  inputs.clip_norm = 1;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const std::uint64_t before_bytes = engine.sent_bytes();
    inputs.step = step;
    engine.run(ProgramKind::train, inputs);
    if (step == 1) continue;  // with nothing pending there is less to send
    EXPECT_EQ(engine.sent_bytes() - before_bytes, said_bytes(ProgramKind::train) + numbers_bytes);
  }
  engine.drain();
  EXPECT_EQ(verdicts, 3u);
  EXPECT_EQ(engine.sent_bytes(), ran_bytes + verdicts * numbers_bytes);
  EXPECT_GT(said_bytes(ProgramKind::train), 0u);
}

INSTANTIATE_TEST_SUITE_P(Meshes, RankMemoryTest, testing::ValuesIn(kMeshes),
                         [](const auto& mesh) { return name_of(mesh.param); });

// Over 500 steps of four ranks with commits and evaluations nothing grows.
TEST(RankGrowthTest, NothingGrows) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  Workspace workspace;
  const TrainProgram program(workspace.path());
  Config config = on(small_on_disk(workspace), {4, "hybrid_shard", 2});
  config.train.steps = 500;
  config.train.micro_batch = 2;
  config.train.micro_batches = 5;
  config.train.eval_every = 50;
  config.commit.every_steps = 10;
  place_all(config, shares(0, 0.5, 0.5));
  expect_nothing_grew(watch_growth(program, workspace.path(), config));
}

}  // namespace
}  // namespace terrace::e2e
