// What happened to the files of a store between two runs: the next one refuses by name, or gives the same
// numbers.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "src/base/log.h"
#include "terrace/error.h"
#include "terrace/store.h"
#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::uint64_t kStop = 5;

// A store that holds the commit of step 5, every chunk written. Runs that resume it do no step.
class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    logger()->set_level(
        spdlog::level::err);  // a damaged record that does not matter is worth a warning each time
    config_ = small_on_disk(workspace_);
    config_.train.steps = kStop;
    config_.train.eval_batches = 0;
    whole_ = run(config_);
    config_.store.path = fs::canonical(config_.store.path);
    listing_ = list_store(config_.store.path);
    data_file_ = listing_.paths.at(0).file;
  }

  // What resuming threw, or the state's hash.
  std::string resume() const {
    try {
      TrainOptions options;
      options.resume = true;
      return train(config_, options).state_hash;
    } catch (const Error& error) {
      return std::string(error_code_name(error.code())) + ": " + error.what();
    }
  }

  static void flip(const std::string& path, std::uint64_t offset, unsigned bit) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0) << path;
    unsigned char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(offset)), 1) << path << " at " << offset;
    byte ^= static_cast<unsigned char>(1u << (bit % 8));
    ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    ::close(fd);
  }

  Workspace workspace_;
  Config config_;
  Record whole_;
  StoreListing listing_;
  std::string data_file_;
};

TEST_F(DamageTest, AFlippedBitInACommittedExtentIsRefusedByName) {
  ASSERT_EQ(resume(), whole_.hash);
  std::mt19937_64 random(1);
  const TrainProgram program(workspace_.path());
  for (std::size_t c = 0; c < listing_.chunks.size(); ++c) {
    const StoreListing::Chunk& chunk = listing_.chunks[c];
    ASSERT_TRUE(chunk.committed) << c;
    const std::uint64_t begin = chunk.offset_bytes, end = begin + chunk.payload_bytes;
    // The payload's first and last byte and one between; the trailer's first byte.
    for (const std::uint64_t offset : {begin, begin + random() % chunk.payload_bytes, end - 1, end}) {
      SCOPED_TRACE(testing::Message() << "chunk " << c << " offset " << offset);
      const unsigned bit = static_cast<unsigned>(random());
      flip(data_file_, offset, bit);
      EXPECT_THAT(resume(),
                  AllOf(HasSubstr("corrupt"), HasSubstr(data_file_), HasSubstr(chunk.segments[0].tensor),
                        HasSubstr("wanted"), HasSubstr("got")));
      if (c == 0) {
        const Outcome outcome = program.run(config_, true);
        EXPECT_EQ(outcome.code, 1);
        EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: "), HasSubstr(data_file_)));
      }
      flip(data_file_, offset, bit);
    }
  }
  EXPECT_EQ(resume(), whole_.hash);
}

// Anywhere at all: what does not matter does not show, what matters is refused.
TEST_F(DamageTest, AFlippedBitAnywhereIsRefusedOrWithoutEffect) {
  std::mt19937_64 random(2);
  const std::string record = config_.store.path + "/record", manifest = config_.store.path + "/manifest.json";
  int refused = 0, without_effect = 0;
  for (const auto& [file, flips] :
       {std::pair(data_file_, 60), std::pair(record, 40), std::pair(manifest, 20)}) {
    for (int i = 0; i < flips; ++i) {
      const std::uint64_t offset = random() % fs::file_size(file);
      const unsigned bit = static_cast<unsigned>(random());
      SCOPED_TRACE(testing::Message() << file << " at " << offset << " bit " << bit % 8);
      const std::string before = read_file(file);
      flip(file, offset, bit);
      const std::string result = resume();
      if (result == whole_.hash) {
        ++without_effect;
        EXPECT_NE(file, manifest);
        continue;  // in an extent that is not the committed one, in a record that has been replaced, in
                   // padding
      }
      ++refused;
      EXPECT_THAT(result, AllOf(HasSubstr("corrupt: "), HasSubstr(file)));
      ASSERT_EQ(read_file(file).size(), before.size());
      flip(file, offset, bit);
    }
  }
  EXPECT_GT(refused, 30);
  EXPECT_GT(without_effect, 10);
  EXPECT_EQ(resume(), whole_.hash);
}

TEST_F(DamageTest, AMissingPathIsRefusedByNameWithItsTensors) {
  const std::string folder = fs::canonical(config_.tiers.nvme[0].path);
  const TrainProgram program(workspace_.path());
  for (const std::string& gone : {folder, data_file_}) {
    fs::rename(gone, folder + ".gone");
    const Outcome outcome = program.run(config_, true);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: "), HasSubstr(gone), HasSubstr("h.0."))) << gone;
    fs::rename(folder + ".gone", gone);
  }
  EXPECT_EQ(resume(), whole_.hash);

  Config fresh = small_on_disk(workspace_);
  fs::remove(fresh.tiers.nvme[0].path);
  for (const char* parameters : {"nvme", "host"}) {
    fresh.placement.parameters = only(parameters);
    const Outcome outcome = program.run(fresh, false);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: "), HasSubstr(fresh.tiers.nvme[0].path)));
    EXPECT_FALSE(fs::exists(fresh.store.path));
  }
}

TEST_F(DamageTest, ACutOffFileIsRefusedByName) {
  const std::string record = config_.store.path + "/record", manifest = config_.store.path + "/manifest.json";
  for (const std::string& file : {data_file_, record, manifest}) {
    const std::uint64_t size = fs::file_size(file);
    fs::copy_file(file, file + ".whole");
    for (const std::uint64_t kept : {size - 1, size / 2, std::uint64_t{0}}) {
      fs::resize_file(file, kept);
      EXPECT_THAT(resume(), AllOf(HasSubstr("corrupt: "), HasSubstr(file))) << kept << " of " << size;
    }
    fs::rename(file + ".whole", file);
  }
  fs::rename(record, record + ".gone");
  EXPECT_THAT(resume(), HasSubstr(record));
  fs::rename(record + ".gone", record);
  fs::rename(manifest, manifest + ".gone");
  EXPECT_THAT(resume(), AllOf(HasSubstr("nothing to resume"), HasSubstr(config_.store.path)));
  fs::rename(manifest + ".gone", manifest);
  EXPECT_EQ(resume(), whole_.hash);
}

// A file of another store, or of an earlier moment, in the place of this one's.
TEST_F(DamageTest, AnotherStoresFilesAreRefusedByName) {
  Config other = small_on_disk(workspace_);
  other.train.steps = kStop;
  run(other);
  const std::string record = config_.store.path + "/record";
  fs::rename(record, record + ".ours");
  fs::copy_file(other.store.path + "/record", record);
  EXPECT_THAT(resume(), AllOf(HasSubstr("corrupt: "), HasSubstr(record)));
  fs::rename(record + ".ours", record);
  const std::string ours = data_file_ + ".ours";
  fs::rename(data_file_, ours);
  fs::copy_file(list_store(other.store.path).paths.at(0).file, data_file_);
  EXPECT_THAT(resume(), AllOf(HasSubstr("corrupt: "), HasSubstr("add up")));
  fs::rename(ours, data_file_);
  EXPECT_EQ(resume(), whole_.hash);
  // An old data file under a newer record: what the record tells of is not there.
  fs::copy_file(data_file_, ours);
  config_.train.steps = kStop + 1;
  ASSERT_EQ(resume().size(), whole_.hash.size());
  fs::rename(ours, data_file_);
  EXPECT_THAT(resume(), AllOf(HasSubstr("corrupt: "), HasSubstr(record)));
}

}  // namespace
}  // namespace terrace::e2e
