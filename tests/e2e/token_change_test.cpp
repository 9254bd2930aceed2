// Another program changes the data while a run reads it: an error that names the file, never a crash or a
// wrong number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/data/token_file.h"
#include "terrace/error.h"
#include "tests/e2e/tiny_run.h"
#include "tests/support/overwrite.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

class TokenChangeTest : public testing::Test {
 protected:
  TokenChangeTest() {
    config_.model.layers = 1;
    config_.model.width = 32;
    config_.train.micro_batch = 2;
    config_.train.micro_batches = 2;
    config_.train.steps = 8;
    config_.train.eval_every = 4;
    config_.compute.threads = 1;
  }

  std::string train_tokens() const { return config_.data.path + "/" + kTrainTokensName; }
  std::string validation_tokens() const { return config_.data.path + "/" + kValidationTokensName; }

  // Flips a bit of the token at `index`.
  static void flip(const std::string& path, std::uint64_t index) {
    const std::uint64_t offset = kTokenHeaderBytes + index;
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    overwrite(path, offset, std::string(1, static_cast<char>(file.get() ^ 1)));
  }

  // Trains, with `change` after the second step; the error, or the state's hash. told_ is the last step told.
  std::string run_with(const std::function<void()>& change) {
    TrainOptions options;
    told_ = 0;
    options.on_step = [&](const StepReport& report) {
      told_ = report.step;
      if (report.step == 2) change();
    };
    try {
      return train(config_, options).state_hash;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
      return error.what();
    }
  }

  Workspace workspace_;
  Config config_ = workspace_.config();
  std::uint64_t told_ = 0;
};

TEST_F(TokenChangeTest, AFileCutShortEndsTheRunInWords) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    config_.ranks.count = ranks;
    const auto size = fs::file_size(train_tokens());
    fs::copy_file(train_tokens(), workspace_.path() + "/whole");
    EXPECT_THAT(run_with([&] { fs::resize_file(train_tokens(), 100); }),
                AllOf(HasSubstr(train_tokens() + ": cut short while it was being read: wanted bytes "),
                      HasSubstr("the file has 100 bytes, and had " + std::to_string(size))));
    EXPECT_EQ(told_, 2u);
    fs::rename(workspace_.path() + "/whole", train_tokens());
  }
}

TEST_F(TokenChangeTest, ATokenOverwrittenIsNotTrainedOn) {
  const auto count = TokenFile(train_tokens()).count();
  EXPECT_THAT(run_with([&] { flip(train_tokens(), count - 1); }),
              HasSubstr(train_tokens() + ": changed while it was being read"));
  EXPECT_EQ(told_, 2u);
}

TEST_F(TokenChangeTest, ATokenOverwrittenIsNotEvaluatedOn) {
  EXPECT_THAT(run_with([&] { flip(validation_tokens(), 0); }),
              HasSubstr(validation_tokens() + ": changed while it was being read"));
  EXPECT_EQ(told_, 4u);
}

TEST_F(TokenChangeTest, NewDataUnderTheSameNameIsForTheNextRun) {
  const std::string undisturbed = run_with([] {});
  EXPECT_EQ(undisturbed.size(), 32u) << undisturbed;
  EXPECT_EQ(run_with([&] {
              fs::copy_file(train_tokens(), workspace_.path() + "/other");
              flip(workspace_.path() + "/other", 3);
              fs::rename(workspace_.path() + "/other", train_tokens());
            }),
            undisturbed);
}

}  // namespace
}  // namespace terrace::e2e
