// What goes wrong with a store ends in words: damage, missing files, full disks, locks, failing transfers,
// kills.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "io/extent_store.h"
#include "io/store_record.h"
#include "terrace/store.h"
#include "tests/support/crash_log.h"
#include "tests/support/store_helpers.h"
#include "tests/support/store_shadow.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class StoreDamage : public testing::Test {
 protected:
  // Two commits: every chunk at step 1, then chunks 0 to 3 at step 2.
  void make_store() {
    const auto store = ExtentStore::create(queue_, {path_, {}}, small_shape());
    for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, 1, i);
    store->commit(1, "one");
    for (std::size_t i = 0; i < 4; ++i) write_chunk(*store, i, 2, 10 + i);
    store->commit(2, "two");
  }
  std::string refusal() {
    return thrown(ErrorCode::corrupt, [&] { ExtentStore::open(queue_, path_); });
  }
  std::string open_copy(const std::string& name) {
    const std::string copy = folder_.file(name);
    fs::remove_all(copy);
    fs::copy(path_, copy, fs::copy_options::recursive);
    return copy;
  }

  TempDir folder_;
  std::string path_ = resolve(folder_.file("store"));
  CrashLog queue_;
};

TEST_F(StoreDamage, AFlippedBitInACommittedTrailerIsRefusedByName) {
  make_store();
  const StoreListing listing = list_store(path_);
  for (std::size_t i = 0; i < 5; ++i) {
    const StoreListing::Chunk& chunk = listing.chunks[i];
    for (const std::uint64_t byte : {0, 9, 25, 40, 48, 56, 64, 80, 84, 88, 96, 2000, 4079, 4080, 4095}) {
      const std::uint64_t at = chunk.offset_bytes + chunk.payload_bytes + byte;
      const std::string& file = listing.paths[chunk.path].file;
      flip_bit(file, at, static_cast<int>(byte % 8));
      const std::string why = refusal();
      EXPECT_THAT(why, HasSubstr("chunk " + std::to_string(i))) << byte;
      EXPECT_THAT(why, HasSubstr(chunk.segments[0].tensor)) << byte;
      EXPECT_THAT(why, HasSubstr(file)) << byte;
      EXPECT_THAT(thrown(ErrorCode::corrupt, [&] { list_store(path_); }),
                  HasSubstr("chunk " + std::to_string(i)));
      flip_bit(file, at, static_cast<int>(byte % 8));
    }
  }
  EXPECT_EQ(ExtentStore::open(queue_, path_)->committed_step(), 2u);
}

TEST_F(StoreDamage, AFlippedBitInAnOldTrailerDoesNoHarm) {
  make_store();
  const StoreListing listing = list_store(path_);
  const StoreListing::Chunk& chunk = listing.chunks[1];
  const std::uint64_t extent_bytes = chunk.payload_bytes + kTrailerBytes;
  ASSERT_EQ(chunk.step, 2u);  // in the second extent, so the first lies before it
  flip_bit(listing.paths[0].file, chunk.offset_bytes - extent_bytes + chunk.payload_bytes + 30, 1);
  const auto store = ExtentStore::open(queue_, path_);
  EXPECT_TRUE(chunk_is(*store, 1, 11));
}

TEST_F(StoreDamage, ATrailerThatWasWipedIsRefused) {
  make_store();
  const StoreListing listing = list_store(path_);
  const StoreListing::Chunk& chunk = listing.chunks[4];  // committed once: nothing older stands beside it
  const int fd = ::open(listing.paths[0].file.c_str(), O_RDWR);
  const std::string zeros(kTrailerBytes, '\0');
  ASSERT_EQ(
      ::pwrite(fd, zeros.data(), zeros.size(), static_cast<off_t>(chunk.offset_bytes + chunk.payload_bytes)),
      static_cast<ssize_t>(zeros.size()));
  ::close(fd);
  EXPECT_THAT(refusal(), HasSubstr("chunk 4"));
}

TEST_F(StoreDamage, AFlippedBitInAPayloadIsFoundByReadAndVerify) {
  make_store();
  const StoreListing listing = list_store(path_);
  const StoreListing::Chunk& chunk = listing.chunks[2];
  const std::string& file = listing.paths[0].file;
  for (const std::uint64_t byte : {std::uint64_t{0}, std::uint64_t{4097}, chunk.payload_bytes - 1}) {
    flip_bit(file, chunk.offset_bytes + byte, 3);
    {
      const auto store = ExtentStore::open(queue_, path_);
      const std::string why = thrown(ErrorCode::corrupt, [&] { chunk_is(*store, 2, 12); });
      for (const std::string& part :
           {std::string("chunk 2"), std::string("block.bias"), file,
            "offset " + std::to_string(chunk.offset_bytes), std::string("wanted"), std::string("got")}) {
        EXPECT_THAT(why, HasSubstr(part));
      }
      EXPECT_TRUE(chunk_is(*store, 1, 11));
    }
    const StoreVerdict verdict = verify_store(path_);
    ASSERT_EQ(verdict.bad.size(), 1u);
    EXPECT_THAT(verdict.bad[0], HasSubstr("chunk 2"));
    EXPECT_THAT(verdict.bad[0], HasSubstr(file));
    EXPECT_EQ(verdict.checked_extents, 6u);
    flip_bit(file, chunk.offset_bytes + byte, 3);
  }
  EXPECT_TRUE(verify_store(path_).whole());
}

TEST_F(StoreDamage, AFlippedBitInTheRecord) {
  make_store();
  // Creation wrote record 1 in place 1, the commits 2 and 3: place 1 holds the last commit, place 0 the one
  // before.
  const std::string record = path_ + "/record";
  for (const std::uint64_t byte : {0, 24, 47, 100, 495, 496, 505, 600, 2048, 3000, 4095}) {
    flip_bit(record, kRecordBytes + byte, 2);
    EXPECT_THAT(refusal(), HasSubstr(record)) << byte;
    EXPECT_THAT(thrown(ErrorCode::corrupt, [&] { list_store(path_); }), HasSubstr(record));
    flip_bit(record, byte, 5);
    EXPECT_THAT(refusal(), HasSubstr(record)) << byte;
    flip_bit(record, kRecordBytes + byte, 2);
    // Now only the older one is damaged: the last commit is known for certain.
    const std::string copy = open_copy("copy");
    const auto store = ExtentStore::open(queue_, copy);
    EXPECT_EQ(store->committed_step(), 2u) << byte;
    EXPECT_TRUE(chunk_is(*store, 0, 10));
    flip_bit(record, byte, 5);
  }
  EXPECT_EQ(ExtentStore::open(queue_, path_)->committed_step(), 2u);
}

TEST_F(StoreDamage, AnOldRecordBesideNewDataIsRefused) {
  make_store();
  const std::string copy = open_copy("copy");
  {
    const auto store = ExtentStore::open(queue_, path_);
    write_chunk(*store, 0, 3, 20);
    store->commit(3, "three");
  }
  fs::copy_file(copy + "/record", path_ + "/record", fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), HasSubstr("older than what the store holds"));
}

TEST_F(StoreDamage, AFlippedBitInTheManifestIsRefusedByName) {
  make_store();
  const std::string manifest = path_ + "/manifest.json";
  const std::uint64_t size = fs::file_size(manifest);
  for (std::uint64_t byte = 0; byte < size; byte += 7) {
    flip_bit(manifest, byte, static_cast<int>(byte % 8));
    EXPECT_THAT(refusal(), HasSubstr(manifest));
    flip_bit(manifest, byte, static_cast<int>(byte % 8));
  }
  fs::resize_file(manifest, size / 2);
  EXPECT_THAT(refusal(), HasSubstr(manifest));
}

}  // namespace
}  // namespace terrace
