#include "terrace/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <tuple>

#include "src/config/keys.h"
#include "src/config/loss_scale_setting.h"
#include "terrace/error.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ConfigTest : public testing::Test {
 protected:
  std::string file() const { return folder_.file("run.toml"); }

  Config load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::ofstream(file()) << text;
    return load_config(file(), overrides);
  }

  std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {},
                       ErrorCode code = ErrorCode::invalid_argument) {
    try {
      load(text, overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "accepted: " << text;
    return "";
  }

  TempDir folder_;
};

TEST_F(ConfigTest, EmptyFileGivesTheDefaults) {
  EXPECT_EQ(to_toml(load("")), to_toml(Config{}));
}

TEST_F(ConfigTest, ReadsEveryForm) {
  const Config config = load(R"(
[model]
width = 64
heads = 4
tied_head = false
[data]
stride = 3
last_batch = "short"
ignore_token = 5
[train]
steps = 7
recompute = "always"
lr_reference_batch = 256
lr_scaling = "sqrt"
[optimizer]
lr = 1
eps = 1e-6
[tiers]
device = "512MiB"
host = 4096
nvme = [{path = "/a", size = "1.5GiB"}, {path = "/b"}]
[placement]
parameters = "nvme"
gradients = {host = 0.25, nvme = 0.75}
optimizer_state = "auto"
[placement.activations]
device = 1
[store]
path = "store"
[commit]
every_steps = 3
)");
  EXPECT_EQ(config.model.width, 64u);
  EXPECT_FALSE(config.model.tied_head);
  EXPECT_EQ(config.data.stride, 3u);
  EXPECT_EQ(config.data.last_batch, "short");
  EXPECT_EQ(config.data.ignore_token, 5);
  EXPECT_EQ(config.train.steps, 7u);
  EXPECT_EQ(config.train.lr_reference_batch, 256u);
  EXPECT_EQ(config.train.lr_scaling, "sqrt");
  EXPECT_EQ(config.train.recompute, "always");
  EXPECT_EQ(config.optimizer.lr, 1.0);
  EXPECT_EQ(config.optimizer.eps, 1e-6);
  EXPECT_EQ(config.tiers.device_bytes, std::uint64_t{512} << 20);
  EXPECT_EQ(config.tiers.host_bytes, 4096u);
  ASSERT_EQ(config.tiers.nvme.size(), 2u);
  EXPECT_EQ(config.tiers.nvme[0].size_bytes, std::uint64_t{3} << 29);
  EXPECT_EQ(config.tiers.nvme[1].path, "/b");
  EXPECT_EQ(config.tiers.nvme[1].size_bytes, 0u);
  EXPECT_FALSE(config.placement.parameters.automatic);
  EXPECT_EQ(config.placement.parameters.nvme, 1);
  EXPECT_EQ(config.placement.gradients.host, 0.25);
  EXPECT_EQ(config.placement.gradients.nvme, 0.75);
  EXPECT_TRUE(config.placement.optimizer_state.automatic);
  EXPECT_EQ(config.placement.activations.device, 1);
  EXPECT_EQ(config.commit.every_steps, 3);
}

TEST_F(ConfigTest, UnknownKeyIsRefusedByFileLineKeyAndNearest) {
  const std::string error = error_of("[train]\nsteps = 5\n\nmicro_bach = 3\n");
  EXPECT_THAT(error, HasSubstr(file() + ":4: train.micro_bach: "));
  EXPECT_THAT(error, HasSubstr("the nearest is train.micro_batch"));
  EXPECT_THAT(error_of("[modle]\nwidht = 3\n"),
              HasSubstr(":2: modle.widht: no such key; the nearest is model.width"));
  EXPECT_THAT(error_of("[optimiser]\nlr = 3\n"),
              HasSubstr("this key belongs in [optimizer], as optimizer.lr"));
  EXPECT_THAT(error_of("[modle]\n"), HasSubstr(":1: modle: no such key"));
  EXPECT_THAT(error_of("[tiers]\nnvme = [{path = \"a\", sise = 1}]\n"), HasSubstr(":2: tiers.nvme.sise: "));
  EXPECT_THAT(error_of("[placement]\nparameters = {hst = 1}\n"),
              HasSubstr("placement.parameters.hst: no such tier"));
}

TEST_F(ConfigTest, MisplacedKeyIsToldWhereItBelongs) {
  EXPECT_THAT(error_of("[model]\nsteps = 5\n"),
              HasSubstr(":2: model.steps: this key belongs in [train], as train.steps"));
  EXPECT_THAT(error_of("steps = 5\n"), HasSubstr(":1: steps: this key belongs in [train]"));
  EXPECT_THAT(error_of("train = 5\n"), HasSubstr(":1: train: wanted a table"));
  EXPECT_THAT(error_of("[placement.nvme]\npath = \"x\"\n"),
              HasSubstr("placement.nvme: this key belongs in [tiers]"));
}

TEST_F(ConfigTest, IllTypedAndOutOfRangeValuesAreRefused) {
  for (const char* text : {"[train]\nsteps = \"5\"",
                           "[train]\nsteps = 5.0",
                           "[train]\nsteps = 0",
                           "[train]\nsteps = -1",
                           "[train]\nmicro_batch = 4294967296",
                           "[model]\ntied_head = 1",
                           "[optimizer]\nlr = \"fast\"",
                           "[optimizer]\nlr = nan",
                           "[optimizer]\nlr = inf",
                           "[optimizer]\nbeta1 = 1.0",
                           "[optimizer]\neps = 0.0",
                           "[optimizer]\nmin_lr_ratio = 1.5",
                           "[optimizer]\nschedule = \"cosin\"",
                           "[tiers]\nhost = \"lots\"",
                           "[tiers]\nhost = -5",
                           "[tiers]\nhost = 1.5",
                           "[tiers]\nnvme = \"/a\"",
                           "[tiers]\nnvme = [\"/a\"]",
                           "[tiers]\nnvme = [{path = \"/a\", size = \"0\"}]",
                           "[tiers]\nnvme = [{path = 3}]",
                           "[tiers]\nnvme = [{size = 4096}]",
                           "[placement]\nparameters = 3",
                           "[placement]\nparameters = \"disk\"",
                           "[placement]\nparameters = {}",
                           "[placement]\nparameters = {host = 0.5, nvme = 0.4}",
                           "[placement]\nparameters = {host = 1.5, nvme = -0.5}",
                           "[placement]\nparameters = {host = true}",
                           "[commit]\nevery_steps = -1",
                           "[commit]\nevery_steps = \"often\"",
                           "[optimizer]\ngroups = \"*.bias\"",
                           "[optimizer]\ngroups = [\"*.bias\"]",
                           "[optimizer]\ngroups = [{match = 3}]",
                           "[optimizer]\ngroups = [{match = \"\"}]",
                           "[optimizer]\ngroups = [{lr_ratio = 2}]",
                           "[optimizer]\ngroups = [{match = \"*\", lr_ratio = -1}]",
                           "[optimizer]\ngroups = [{match = \"*\", frozen = 1}]",
                           "[optimizer]\ngroups = [{match = \"*\", frozen = true, lr_ratio = 2}]",
                           "[optimizer]\ngroups = [{match = \"*\", weight_decay = \"none\"}]",
                           "[data]\npath = 3",
                           "[data]\nstride = -1",
                           "[data]\nlast_batch = \"drop\"",
                           "[data]\nignore_token = -2",
                           "[train]\nlr_reference_batch = -1",
                           "[ranks]\npersist_below_numel = -1",
                           "[ranks]\npersist_below_numel = 1e5",
                           "[train]\nlr_scaling = \"cube\"",
                           "[data]\npath = 1979-05-27"}) {
    const std::string error = error_of(text);
    EXPECT_THAT(error, HasSubstr(file() + ":2: ")) << text;
    EXPECT_THAT(error, HasSubstr("wanted")) << text;
  }
  EXPECT_THAT(error_of("[train]\nsteps = \"5\""), HasSubstr("wanted an integer, at least 1; got \"5\""));
}

TEST_F(ConfigTest, BrokenTomlAndMissingFilesAreRefused) {
  EXPECT_THAT(error_of("[train\nsteps = 5\n"), HasSubstr(file() + ":1:"));
  EXPECT_THAT(error_of("[train]\nsteps = 5\nsteps = 6\n"), HasSubstr(file() + ":3:"));
  try {
    load_config(folder_.file("none.toml"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("none.toml"));
  }
  EXPECT_THROW(load_config(folder_.path()), Error);
}

TEST_F(ConfigTest, CrossChecksNameTheKeys) {
  EXPECT_THAT(error_of("[model]\nwidth = 65\nheads = 4\n"),
              HasSubstr("model.heads = 4 does not divide model.width = 65"));
  EXPECT_THAT(error_of("[model]\nheads = 12\nkv_heads = 5\n"),
              HasSubstr("model.kv_heads = 5 does not divide"));
  EXPECT_THAT(error_of("[model]\nvocabulary = 39\n[data]\nignore_token = 39\n"),
              HasSubstr("data.ignore_token = 39 is no token: model.vocabulary = 39"));
  EXPECT_EQ(load("[model]\nvocabulary = 39\n[data]\nignore_token = 38\n").data.ignore_token, 38);
  EXPECT_THAT(error_of("[placement]\nchunk_numel = 5000\n"), HasSubstr("the nearest below is 4096"));
  EXPECT_THAT(error_of("[io]\npiece_bytes = 4097\n"), HasSubstr("io.piece_bytes = 4097"));
  EXPECT_THAT(error_of("[placement]\ngradients = \"nvme\"\n"),
              HasSubstr("placement.gradients puts a share of 1 on nvme, but tiers.nvme names no path"));
  EXPECT_THAT(error_of("[tiers]\nhost = 0\n[placement]\nactivations = \"host\"\n"),
              HasSubstr("tiers.host is 0"));
  EXPECT_THAT(error_of("[tiers]\ndevice = 0\n[placement]\nparameters = {device = 0.5, host = 0.5}\n"),
              HasSubstr("tiers.device is 0"));
  EXPECT_THAT(error_of("[tiers]\nnvme = [{path = \"/a\"}, {path = \"/a\"}]\n"), HasSubstr("names /a twice"));
  EXPECT_THAT(error_of("[commit]\nevery_steps = 1\n"), HasSubstr("needs store.path"));
  EXPECT_THAT(error_of("[ranks]\nlink_gbps = 1e-300\n"), HasSubstr("wanted 0 (none), or at least 1e-06"));
}

TEST_F(ConfigTest, OverridesTakeTheSamePath) {
  const Config config = load("[train]\nsteps = 5\n",
                             {"train.steps=20", "tiers.host=2GiB", "train.recompute=always", "data.path=2024",
                              "store.path=\"a b\"", "tiers.nvme=[{path=\"/a\", size=\"1GiB\"}]",
                              "placement.gradients={host=0.5,nvme=0.5}", "placement.parameters=nvme",
                              "commit.every_steps=auto", "model.tied_head=false", "optimizer.lr = 1e-3"});
  EXPECT_EQ(config.train.steps, 20u);
  EXPECT_EQ(config.tiers.host_bytes, std::uint64_t{2} << 30);
  EXPECT_EQ(config.train.recompute, "always");
  EXPECT_EQ(config.data.path, "2024");
  EXPECT_EQ(config.store.path, "a b");
  EXPECT_EQ(config.tiers.nvme.at(0).path, "/a");
  EXPECT_EQ(config.placement.gradients.nvme, 0.5);
  EXPECT_EQ(config.placement.parameters.nvme, 1);
  EXPECT_EQ(config.commit.every_steps, -1);
  EXPECT_FALSE(config.model.tied_head);
  EXPECT_EQ(config.optimizer.lr, 1e-3);

  EXPECT_THAT(error_of("", {"train.step=20"}), HasSubstr("--set train.step=20: train.step: no such key"));
  EXPECT_THAT(error_of("", {"train.steps=many"}),
              HasSubstr("train.steps: wanted an integer, at least 1; got \"many\""));
  EXPECT_THAT(error_of("", {"train.steps"}), HasSubstr("wanted KEY=VALUE"));
  EXPECT_THAT(error_of("", {"=3"}), HasSubstr("wanted KEY=VALUE"));
  EXPECT_THAT(error_of("", {"steps=3"}), HasSubstr("belongs in [train]"));
  EXPECT_THAT(error_of("", {"train.steps=3\nseed=4"}), HasSubstr("wanted an integer"));
  EXPECT_THAT(error_of("", {"placement.chunk_numel=5000"}),
              HasSubstr("run.toml with --set: placement.chunk_numel"));
}

TEST_F(ConfigTest, TheLossScaleIsAWordOrANumber) {
  const auto setting = [&](const std::string& compute, const std::string& grad, const std::string& scale) {
    const Config config =
        load("", {"precision.compute=" + compute, "precision.grad=" + grad, "precision.loss_scale=" + scale});
    EXPECT_EQ(to_toml(load(to_toml(config))), to_toml(config));
    return loss_scale_setting(config);
  };
  for (const auto& [compute, grad, dynamic] : {std::tuple{"bf16", "auto", false},
                                               {"bf16", "fp32", false},
                                               {"fp32", "bf16", false},
                                               {"fp16", "auto", true},
                                               {"fp16", "fp32", true},
                                               {"fp32", "fp16", true},
                                               {"bf16", "fp16", true}}) {
    const LossScaleSetting automatic = setting(compute, grad, "auto");
    EXPECT_EQ(automatic.dynamic, dynamic) << compute << " " << grad;
    EXPECT_EQ(automatic.wants_verdict, dynamic);
    EXPECT_EQ(automatic.fixed, 1);
    EXPECT_TRUE(setting(compute, grad, "dynamic").dynamic);
    EXPECT_TRUE(setting(compute, grad, "dynamic").wants_verdict);
    const LossScaleSetting fixed = setting(compute, grad, "300.5");
    EXPECT_FALSE(fixed.dynamic);
    EXPECT_EQ(fixed.fixed, 300.5);
    EXPECT_TRUE(fixed.wants_verdict);
    EXPECT_EQ(setting(compute, grad, "1").wants_verdict, dynamic) << "fp16 overflows with a scale of 1 too";
  }
  EXPECT_THAT(to_toml(Config{}), HasSubstr("loss_scale = \"auto\""));
  EXPECT_THAT(to_toml(load("[precision]\nloss_scale = 128\n")), HasSubstr("loss_scale = 128.0"));
  EXPECT_THAT(error_of("[precision]\nloss_scale = \"static\"\n"),
              HasSubstr("wanted \"auto\" or \"dynamic\" or a number, above 0; got \"static\""));
  for (const char* bad : {"0", "-1", "-2", "inf", "true"}) {
    EXPECT_THAT(error_of("", {std::string("precision.loss_scale=") + bad}),
                HasSubstr("precision.loss_scale: "));
  }
  EXPECT_THAT(error_of("", {"precision.loss_scale=1e20"}), HasSubstr("the largest is 2^64"));
  EXPECT_THAT(error_of("", {"precision.loss_scale_initial=1e20"}), HasSubstr("the largest is 2^64"));
  EXPECT_THAT(error_of("", {"precision.loss_scale_initial=1000"}),
              HasSubstr("loss_scale_initial = 1000 is not a power of two; the nearest below is 512"));
  EXPECT_THAT(error_of("", {"precision.loss_scale_minimum=0.3"}), HasSubstr("the nearest below is 0.25"));
  EXPECT_THAT(error_of("", {"precision.loss_scale_minimum=4", "precision.loss_scale_initial=2"}),
              HasSubstr("loss_scale_minimum = 4 is above precision.loss_scale_initial = 2"));
  EXPECT_THAT(error_of("", {"precision.loss_scale_window=0"}), HasSubstr("at least 1"));
  EXPECT_THAT(error_of("", {"precision.loss_scale_hysteresis=0"}), HasSubstr("at least 1"));
}

TEST_F(ConfigTest, RoundTripsThroughToml) {
  Config config;
  config.model.init_std = 0.1 + 0.2;
  config.optimizer.eps = 1e-20;
  config.optimizer.lr = 3;
  config.data.ignore_token = 7;
  config.data.path = "quote \" back \\ tab \t end";
  config.tiers.host_bytes = 12345;
  config.tiers.nvme = {{"/a", std::uint64_t{1} << 30}, {"/b", 0}, {"/c", 999}};
  config.placement.gradients = {false, 0, 1.0 / 3, 2.0 / 3};
  config.placement.activations = {false, 0, 0, 1};
  config.store.path = "store";
  config.commit.every_steps = 9;
  config.train.seed = (std::uint64_t{1} << 63) - 1;
  const std::string text = to_toml(config);
  EXPECT_NE(text, to_toml(Config{}));
  const Config back = load(text);
  EXPECT_EQ(to_toml(back), text);
  EXPECT_EQ(back.model.init_std, config.model.init_std);
  EXPECT_EQ(back.data.path, config.data.path);
  EXPECT_EQ(back.data.ignore_token, 7);
  EXPECT_EQ(back.placement.gradients.nvme, config.placement.gradients.nvme);
  EXPECT_EQ(back.tiers.nvme[2].size_bytes, 999u);
  EXPECT_EQ(back.train.seed, config.train.seed);
}

TEST_F(ConfigTest, ParameterGroupsAreTablesOfTheirOwn) {
  const std::string text =
      "[[optimizer.groups]]\nmatch = \"h.*.mlp.*\"\nlr_ratio = 0.5\n"
      "[[optimizer.groups]]\nmatch = \"*.bias\"\nweight_decay = 0\n";
  const Config config = load("[optimizer]\nlr = 0.25\n" + text);
  ASSERT_EQ(config.optimizer.groups.size(), 2u);
  EXPECT_EQ(config.optimizer.groups[0].match, "h.*.mlp.*");
  EXPECT_EQ(config.optimizer.groups[0].lr_ratio, 0.5);
  EXPECT_FALSE(config.optimizer.groups[0].weight_decay.has_value());
  EXPECT_EQ(config.optimizer.groups[1].lr_ratio, 1.0);
  EXPECT_EQ(config.optimizer.groups[1].weight_decay, 0.0);
  EXPECT_EQ(config.optimizer.lr, 0.25);

  const Config back = load(to_toml(config));
  EXPECT_EQ(to_toml(back), to_toml(config));
  EXPECT_EQ(back.optimizer.groups[1].match, "*.bias");
  EXPECT_EQ(back.optimizer.groups[1].weight_decay, 0.0);
  EXPECT_FALSE(back.optimizer.groups[0].weight_decay.has_value());

  EXPECT_FALSE(back.optimizer.groups[1].frozen);
  const Config frozen = load(text + "[[optimizer.groups]]\nmatch = \"wte.*\"\nfrozen = true\n");
  EXPECT_TRUE(frozen.optimizer.groups.at(2).frozen);
  EXPECT_TRUE(load(to_toml(frozen)).optimizer.groups.at(2).frozen);

  EXPECT_EQ(load(text, {"optimizer.groups=[{match=\"a\"}]"}).optimizer.groups.at(0).match, "a");
  EXPECT_THAT(error_of(text + "lr_ration = 2\n"),
              HasSubstr(":7: optimizer.groups[1].lr_ration: no such key; the nearest is "
                        "optimizer.groups[1].lr_ratio"));
  EXPECT_THAT(error_of("[[optimizer.group]]\nmatch = \"a\"\n"),
              HasSubstr("optimizer.group: no such key; the nearest is optimizer.groups"));
}

TEST(ConfigKeys, AreUniqueDocumentedAndBoundToDistinctFields) {
  Config config;
  std::set<std::string_view> names;
  std::set<const void*> fields;
  for (const auto& key : config_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.doc.empty()) << key.name;
    const bool words = key.form == KeyForm::choice || key.form == KeyForm::number_or_word;
    EXPECT_EQ(words, !key.choices.empty()) << key.name;
    const void* field =
        std::visit([](auto* target) { return static_cast<const void*>(target); }, key.field(config));
    EXPECT_TRUE(fields.insert(field).second) << key.name;
    EXPECT_EQ(find_key(key.name), &key);
  }
}

TEST(ConfigKeys, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("steps", "step"), 1u);
  EXPECT_EQ(edit_distance("steps", "setps"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(ConfigReference, CommittedFileIsWhatTheTableGives) {
  std::ifstream file(TERRACE_SOURCE_DIR "/docs/configuration.md");
  const std::string committed{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(committed == config_reference())
      << "run: build/release/bin/terrace config-reference > docs/configuration.md";
}

TEST(ConfigPresets, AllLoad) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TERRACE_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    EXPECT_NO_THROW(load_config(entry.path())) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 4u);
}

}  // namespace
}  // namespace terrace
