// Frozen tensors keep their bits, have no part in the norm, and change nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/known_gradients.h"
#include "tests/support/error_of.h"

namespace terrace::engine_test {
namespace {

constexpr Mesh kMeshes[] = {{1, "3"},
                            {2, "0"},
                            {2, "3"},
                            {3, "1"},
                            {3, "3"},
                            {3, "0"},
                            {4, "2"},
                            {4, "3"},
                            {4, "hybrid_shard", 2},
                            {4, "hybrid_shard", 4}};

// A frozen embedding and a frozen unit of several chunks; frozen stretches inside blocks and over whole ones.
KnownModel model() {
  return {{{{"wte", 20001}, {"wpe", 777}},
           {{"h.0.w", 12289}, {"h.0.b", 97, false}},
           {{"h.1.w", 9001}, {"h.1.b", 31, false}, {"h.1.v", 16384}, {"h.1.c", 1, false}},
           {{"out.g", 5}, {"out.w", 30011}}},
          {}};
}

using Groups = std::vector<ParameterGroup>;
const std::vector<Groups> kSets{
    {{"wte", 1, {}, true}},
    {{"w?e", 1, {}, true}, {"h.0.*", 1, {}, true}},
    {{"*.b", 1, {}, true}, {"out.g", 1, {}, true}},
    {{"h.1.v", 1, {}, true}, {"h.0.w", 1, {}, true}, {"out.w", 1, {}, true}},
};

bool is_frozen(const Groups& groups, const std::string& name) {
  const auto in = [&](const std::string& start) { return name.starts_with(start); };
  if (&groups == &kSets[0]) return name == "wte";
  if (&groups == &kSets[1]) return in("w") || in("h.0.");
  if (&groups == &kSets[2]) return name.ends_with(".b") || name == "out.g";
  return name == "h.1.v" || name == "h.0.w" || name == "out.w";
}

class Frozen : public testing::TestWithParam<std::size_t> {
 protected:
  const Groups& groups() const { return kSets[GetParam()]; }
  bool frozen(const std::string& name) const { return is_frozen(groups(), name); }
  Config config() const {
    Config config = known_config();
    config.optimizer.groups = groups();
    return config;
  }

  Stores stores_;
};

TEST_P(Frozen, KeepTheirBitsWhileOthersAreUpdatedAsAReferenceDoes) {
  const auto hyper = [&](const KnownModel::Tensor& tensor) -> Hyper {
    return {1, tensor.decay ? 0.25 : 0, frozen(tensor.name)};
  };
  std::vector<double> norms;
  const auto exact = reference_run(config(), model(), 3, hyper, &norms);
  const KnownResult one = run_known(config(), model(), 1, 3);
  expect_near(one, exact, "one rank");
  for (std::size_t s = 0; s < norms.size(); ++s) EXPECT_NEAR(one.norms[s], norms[s], 1e-6 * norms[s]);
  for (const auto& [name, state] : one.tensors) {
    if (!frozen(name)) continue;
    EXPECT_EQ(state.steps, 0u) << name;
    for (std::size_t i = 0; i < state.master.size(); ++i) {
      ASSERT_EQ(state.master[i], initial_value(name, i)) << name;
      ASSERT_EQ(state.exp_avg[i], 0.0f) << name;
      ASSERT_EQ(state.exp_avg_sq[i], 0.0f) << name;
    }
  }
}

// Without clipping the others cannot know of it.
TEST_P(Frozen, ChangeNothingElse) {
  Config config = this->config();
  config.optimizer.clip_norm = 0;
  const KnownResult result = run_known(config, model(), 1, 3);
  for (ParameterGroup& group : config.optimizer.groups) group = {group.match, 0, 0.0, false};
  const KnownResult still = run_known(config, model(), 1, 3);
  for (const auto& [name, state] : result.tensors) {
    EXPECT_EQ(state.master, still.tensors.at(name).master) << name;
    if (!frozen(name)) {
      EXPECT_EQ(state, still.tensors.at(name)) << name;
    }
  }
}

TEST_P(Frozen, AreTheSameOnEveryMeshAndPlacement) {
  static const PlacementShares kPlaces[] = {
      {true, 0, 0, 0}, {false, 1, 0, 0}, {false, 0, 1, 0}, {false, 0, 0, 1}, {false, 0.3, 0.3, 0.4}};
  for (const auto& [contributions, clip_norm] : {std::pair{1u, 1.0}, {3u, 0.0}}) {
    Config base = config();
    base.optimizer.clip_norm = clip_norm;
    base.train.micro_batches = contributions;
    const KnownResult one = run_known(base, model(), 1, 3);
    std::size_t place = GetParam() + contributions;
    for (const Mesh& mesh : kMeshes) {
      const std::string what = std::to_string(mesh.ranks) + " ranks, stage " + mesh.stage + ", " +
                               std::to_string(contributions) + " contributions";
      EXPECT_EQ(run_known(on(base, mesh), model(), 1, 3), one) << what << " in memory";
      Config config = stores_.on_disk(on(base, mesh), false);
      config.placement.chunk_numel = place % 2 == 0 ? 8192 : 65536;
      config.compute.adversarial = place % 3 == 0;
      config.placement.parameters = config.placement.gradients = config.placement.optimizer_state =
          kPlaces[++place % 5];
      EXPECT_EQ(run_known(config, model(), 1, 3), one) << what << ", place " << place % 5;
      if (HasFailure()) return;
    }
  }
}

TEST_P(Frozen, ComeBackAtAnyNumberOfRanks) {
  const KnownResult one = run_known(config(), model(), 1, 4);
  std::size_t next = 0;
  for (const Mesh& mesh : kMeshes) {
    Config config = stores_.on_disk(this->config(), false);
    if (next % 2 == 0) config.placement.optimizer_state = {false, 0, 0, 1};
    run_known(on(config, mesh), model(), 1, 2);
    const Mesh& other = kMeshes[(++next * 3) % std::size(kMeshes)];
    const KnownResult rest = run_known(on(config, other), model(), 3, 4, true);
    EXPECT_EQ(rest.tensors, one.tensors) << mesh.ranks << " ranks, then " << other.ranks;
    EXPECT_EQ(rest.hash, one.hash);
  }
}

// Two thirds of a state are moments, and what has no gradient has no sum either.
TEST_P(Frozen, HaveNoOptimizerStates) {
  KnownModel with = model();
  with.drops_states = false;
  const KnownResult without = run_known(config(), model(), 1, 2), kept = run_known(config(), with, 1, 2);
  EXPECT_EQ(without, kept);
  // Blocks of frozen tensors alone, of each set.
  const std::uint64_t blocks[] = {4, 6 + 4, 0, 3 + 3 + 7};
  EXPECT_GE(kept.state_bytes - without.state_bytes, blocks[GetParam()] * 8 * kBlockNumel);
  EXPECT_LE(kept.state_bytes - without.state_bytes, blocks[GetParam()] * (8 * kBlockNumel + 16384));
  EXPECT_EQ(kept.sum_numel - without.sum_numel, blocks[GetParam()] * kBlockNumel);
}

// A store is cut as it was made: what it holds states of may be frozen, not the reverse.
TEST_P(Frozen, MayBeMoreThanTheStoreWasMadeWith) {
  Config none = stores_.on_disk(known_config(), false);
  none.placement.optimizer_state = {false, 0, 0.5, 0.5};
  const KnownResult first = run_known(none, model(), 1, 2);
  Config more = none;
  more.optimizer.groups = groups();
  more.ranks.count = 3;
  const KnownResult then = run_known(more, model(), 3, 4, true);
  for (const auto& [name, state] : then.tensors) {
    if (frozen(name)) {
      EXPECT_EQ(state, first.tensors.at(name)) << name;
    } else {
      EXPECT_EQ(state.steps, 4u) << name;
    }
  }
  const KnownResult again = run_known(none, model(), 5, 5, true);  // and trained once more
  for (const auto& [name, state] : again.tensors) EXPECT_EQ(state.steps, frozen(name) ? 3u : 5u) << name;
}

TEST_P(Frozen, CannotBeTrainedWhereTheStoreHasNoStates) {
  const Config config = stores_.on_disk(this->config(), false);
  run_known(config, model(), 1, 2);
  Config none = config;
  none.optimizer.groups.clear();
  static const char* kLacks[] = {"wte", "wte", "", "h.0.w"};
  const std::string lacks = kLacks[GetParam()];
  if (lacks.empty()) {  // all of it stands in blocks with others
    const KnownResult result = run_known(none, model(), 3, 3, true);
    EXPECT_EQ(result.tensors.at("out.g").steps, 1u);
    EXPECT_EQ(result.tensors.at("out.w").steps, 3u);
    return;
  }
  const std::string error = error_of([&] { run_known(none, model(), 3, 3, true); });
  EXPECT_THAT(error, testing::HasSubstr("was made with " + lacks + " frozen and holds no optimizer states"));
  EXPECT_EQ(run_known(config, model(), 3, 4, true).tensors, run_known(this->config(), model(), 1, 4).tensors);
}

// What is not updated cannot spoil a step.
TEST_P(Frozen, MayHaveAGradientThatIsNotFinite) {
  KnownModel model = engine_test::model();
  const KnownResult finite = run_known(config(), model, 1, 2);
  for (const auto& [name, state] : finite.tensors)
    if (frozen(name)) model.infinite = name;
  for (const std::uint32_t ranks : {1u, 3u}) {
    Config config = this->config();
    config.ranks.count = ranks;
    EXPECT_EQ(run_known(config, model, 1, 2), finite) << model.infinite << ", " << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, Frozen, testing::Range<std::size_t>(0, kSets.size()));

}  // namespace
}  // namespace terrace::engine_test
