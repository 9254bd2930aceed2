// The store as its users see it, on each kind of queue.
#include "io/extent_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "io/store_record.h"
#include "terrace/store.h"
#include "tests/support/store_helpers.h"
#include "tests/support/store_shadow.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using MakeQueue = std::unique_ptr<IoQueue> (*)(const IoQueueOptions&);

class ExtentStoreTest : public testing::TestWithParam<MakeQueue> {
 protected:
  void SetUp() override {
    try {
      queue_ = GetParam()({});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  TempDir folder_;
  std::string path_ = resolve(folder_.file("store"));
  std::unique_ptr<IoQueue> queue_;
};

TEST_P(ExtentStoreTest, CreatedThenWrittenThenReopened) {
  EXPECT_FALSE(ExtentStore::exists(path_));
  {
    const auto store = ExtentStore::create(*queue_, {path_, {}}, small_shape());
    EXPECT_TRUE(ExtentStore::exists(path_));
    EXPECT_FALSE(store->committed_step());
    EXPECT_EQ(store->run_state(), "");
    for (std::size_t i = 0; i < 5; ++i) EXPECT_FALSE(store->written(i));
    for (std::size_t i = 0; i < 4; ++i) write_chunk(*store, i, 1, i);
    EXPECT_TRUE(chunk_is(*store, 2, 2));  // the newest, before any commit
    store->commit(1, "first");
    write_chunk(*store, 0, 2, 10);
    EXPECT_TRUE(chunk_is(*store, 0, 10));
    write_chunk(*store, 0, 3, 11);  // overwritten in place
    store->commit(3, "second");
    write_chunk(*store, 0, 4, 12);  // lost with the run
    write_chunk(*store, 4, 4, 12);
    EXPECT_EQ(store->committed_step(), 3u);
  }
  const auto store = ExtentStore::open(*queue_, path_);
  EXPECT_EQ(store->committed_step(), 3u);
  EXPECT_EQ(store->run_state(), "second");
  EXPECT_EQ(store->shape().model, small_shape().model);
  EXPECT_EQ(store->shape().chunks.size(), 5u);
  EXPECT_TRUE(chunk_is(*store, 0, 11));
  EXPECT_EQ(store->version(0).step, 3u);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(chunk_is(*store, i, i));
  EXPECT_FALSE(store->written(4));
  EXPECT_TRUE(store->version(4).segment_steps.empty());
}

TEST_P(ExtentStoreTest, RunStateOfEverySize) {
  auto store = ExtentStore::create(*queue_, {path_, {}}, small_shape());
  std::uint64_t step = 0;
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{4096}, std::uint64_t{4097},
        kMaxRunStateBytes - 1, kMaxRunStateBytes}) {
    const std::string state(size, static_cast<char>('a' + step));
    store->commit(++step, state);
    EXPECT_EQ(store->run_state(), state);
    store.reset();
    store = ExtentStore::open(*queue_, path_);
    EXPECT_EQ(store->run_state(), state);
    EXPECT_EQ(store->committed_step(), step);
  }
  thrown(ErrorCode::does_not_fit, [&] { store->commit(99, std::string(kMaxRunStateBytes + 1, 'x')); });
  store->commit(99, "still usable");
}

TEST_P(ExtentStoreTest, TheSameStepMayBeCommittedAgain) {
  auto store = ExtentStore::create(*queue_, {path_, {}}, small_shape());
  write_chunk(*store, 1, 5, 1);
  store->commit(5, "a");
  const std::uint64_t epoch = store->epoch();
  store->commit(5, "a");  // nothing to do
  EXPECT_EQ(store->epoch(), epoch);
  for (const char* state : {"b", "c", "d"}) {
    store->commit(5, state);
    store.reset();
    store = ExtentStore::open(*queue_, path_);
    EXPECT_EQ(store->run_state(), state);
    EXPECT_EQ(store->committed_step(), 5u);
    EXPECT_TRUE(chunk_is(*store, 1, 1));
  }
}

TEST_P(ExtentStoreTest, ManyTransfersAtOnce) {
  StoreShape shape;
  for (std::uint64_t i = 0; i < 40; ++i)
    shape.chunks.push_back({{{"t", i * 10, i * 10 + 10}}, 4096 * (1 + i % 7)});
  auto store = ExtentStore::create(*queue_, {path_, {}}, shape);
  std::vector<AlignedBlock> blocks;
  for (const StoreChunk& chunk : shape.chunks) blocks.emplace_back(chunk.payload_bytes + kTrailerBytes);
  for (std::uint64_t step = 1; step <= 10; ++step) {
    TransferGroup group;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::memset(blocks[i].data(), static_cast<int>(step + i), blocks[i].size());
      store->write(i, blocks[i].span(), {step, {step}}, IoPriority::write_back, group.add());
    }
    group.wait();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::memset(blocks[i].data(), 0, blocks[i].size());
      store->read(i, blocks[i].span(), IoPriority::prefetch, group.add());
    }
    if (step % 3 == 0) store->commit(step, "reads are under way");
    group.wait();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_EQ(blocks[i].data()[0], static_cast<std::byte>(step + i));
    }
  }
  store.reset();
  store = ExtentStore::open(*queue_, path_);
  EXPECT_EQ(store->committed_step(), 9u);
}

TEST_P(ExtentStoreTest, WrongUseIsRefused) {
  const auto store = ExtentStore::create(*queue_, {path_, {}}, small_shape());
  AlignedBlock block(8192 + kTrailerBytes);
  const auto ignore = [](std::exception_ptr) {};
  const auto priority = IoPriority::demand;
  thrown(ErrorCode::internal, [&] { store->read(0, block.span(), priority, ignore); });  // never written
  thrown(ErrorCode::internal, [&] { store->read(5, block.span(), priority, ignore); });
  thrown(ErrorCode::internal, [&] { store->write(0, block.span().first(8192), {1, {1}}, priority, ignore); });
  thrown(ErrorCode::internal, [&] {
    store->write(1, block.span().subspan(8), {1, {1, 1}}, priority, ignore);
  });
  thrown(ErrorCode::internal, [&] { store->write(0, block.span(), {1, {1, 2}}, priority, ignore); });
  write_chunk(*store, 0, 3, 1);
  thrown(ErrorCode::internal, [&] { store->commit(2, ""); });  // below a step that was written
  store->commit(3, "");
  thrown(ErrorCode::internal, [&] { write_chunk(*store, 0, 3, 2); });  // would look committed
  thrown(ErrorCode::internal, [&] { store->commit(2, ""); });
  write_chunk(*store, 0, 4, 4);
  EXPECT_TRUE(chunk_is(*store, 0, 4));
}

TEST_P(ExtentStoreTest, ANewRunMayWriteAtTheStepItOpenedAt) {
  { ExtentStore::create(*queue_, {path_, {}}, small_shape())->commit(7, "seven"); }
  {
    const auto store = ExtentStore::open(*queue_, path_);
    write_chunk(*store, 0, 7, 1);
    thrown(ErrorCode::internal, [&] { write_chunk(*store, 1, 6, 1); });
    store->commit(7, "seven again");
  }
  const auto store = ExtentStore::open(*queue_, path_);
  EXPECT_EQ(store->run_state(), "seven again");
  EXPECT_TRUE(chunk_is(*store, 0, 1));
}

TEST_P(ExtentStoreTest, ASecondCreationIsRefused) {
  { const auto store = ExtentStore::create(*queue_, {path_, {}}, small_shape()); }
  EXPECT_THAT(thrown(ErrorCode::invalid_argument,
                     [&] {
                       ExtentStore::create(*queue_, {path_, {}}, small_shape());
                     }),
              HasSubstr(path_));
  const auto store = ExtentStore::open(*queue_, path_);  // unharmed
}

TEST_P(ExtentStoreTest, MovesWithItsDirectory) {
  fs::create_directories(path_ + "/below/it");
  {
    const auto store = ExtentStore::create(
        *queue_, {path_ + "/./", {{path_ + "/below/../below/it", 0}, {path_, 0}}}, small_shape());
    for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, 1, i);
    store->commit(1, "moved");
  }
  const std::string other = resolve(folder_.file("other/name"));
  fs::create_directories(folder_.file("other"));
  fs::rename(path_, other);
  const auto store = ExtentStore::open(*queue_, other + "/");
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(chunk_is(*store, i, i));
  EXPECT_EQ(store->path(), other);
}

TEST_P(ExtentStoreTest, OneExtentAChunkIsNeverCommittedAndLeavesNothing) {
  const std::string volume = folder_.file("volume");
  fs::create_directories(volume);
  const StoreOptions options{path_, {{volume, 0}}, false, 50};
  {
    const auto store = ExtentStore::create(*queue_, options, small_shape());
    EXPECT_FALSE(ExtentStore::exists(path_));
    thrown(ErrorCode::busy, [&] {  // alive: not to be reclaimed
      try {
        ExtentStore::create(*queue_, options, small_shape());
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(std::to_string(::getpid())));
        throw;
      }
    });
    for (std::uint64_t step = 1; step < 4; ++step) {
      for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, step, step * i);
      for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(chunk_is(*store, i, step * i));
    }
    thrown(ErrorCode::internal, [&] { store->commit(3, ""); });
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(volume)) bytes += entry.file_size();
    EXPECT_EQ(bytes, 8192u + 4096 + 12288 + 4096 + 16384 + 5 * kTrailerBytes);
    thrown(ErrorCode::not_found, [&] { ExtentStore::open(*queue_, path_); });
  }
  EXPECT_TRUE(fs::is_empty(volume));
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_P(ExtentStoreTest, ListAndVerifySeeTheLastCommit) {
  const auto store = ExtentStore::create(*queue_, {path_, {}}, small_shape());
  StoreListing listing = list_store(path_);
  EXPECT_FALSE(listing.committed_step);
  EXPECT_EQ(listing.chunks.size(), 5u);
  EXPECT_FALSE(listing.chunks[0].committed);
  EXPECT_EQ(verify_store(path_).checked_extents, 0u);
  write_chunk(*store, 0, 1, 3);
  write_chunk(*store, 2, 2, 4);
  store->commit(2, "state");
  write_chunk(*store, 2, 3, 5);
  listing = list_store(path_);  // while it is open
  EXPECT_EQ(listing.committed_step, 2u);
  EXPECT_EQ(listing.run_state, "state");
  EXPECT_EQ(listing.model, small_shape().model);
  EXPECT_EQ(listing.process_id, static_cast<std::uint64_t>(::getpid()));
  EXPECT_EQ(listing.streams.size(), 2u);
  EXPECT_TRUE(listing.chunks[0].committed);
  EXPECT_FALSE(listing.chunks[1].committed);
  EXPECT_EQ(listing.chunks[2].step, 2u);
  EXPECT_EQ(listing.chunks[2].segments[1].tensor, "block.bias");
  EXPECT_EQ(listing.chunks[2].segments[1].steps, 4u);
  EXPECT_EQ(listing.paths.at(0).chunks, 5u);
  std::uint64_t last = 0;
  const StoreVerdict verdict = verify_store(path_, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_LE(done, total);
    last = done;
  });
  EXPECT_TRUE(verdict.whole());
  EXPECT_EQ(verdict.checked_extents, 3u);  // with the run state
  EXPECT_EQ(verdict.initial_chunks, 3u);
  EXPECT_EQ(verdict.checked_bytes, 8192u + 12288 + 4096 + 3 * kTrailerBytes);
  EXPECT_EQ(last, verdict.checked_bytes);
}

// Readers beside a run that commits all the time: never an error, never a chunk called bad.
TEST_P(ExtentStoreTest, ReadersBesideAWriter) {
  const auto store = ExtentStore::create(*queue_, {path_, {}}, small_shape());
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t step = 1; !stop; ++step) {
      for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, step, step);
      store->commit(step, std::string(step % 6000, 's'));
    }
  });
  int looked = 0;
  for (int i = 0; i < 15; ++i) {
    try {
      list_store(path_);
      const StoreVerdict verdict = verify_store(path_);
      EXPECT_THAT(verdict.bad, testing::IsEmpty());
      ++looked;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::busy) << error.what();
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(looked, 0);
}

// The list of epochs has room for so many runs; each leaves one chunk behind that no later run touches.
TEST(ExtentStoreEpochs, AFullListIsMadeShort) {
  const TempDir folder(fast_folder());
  const std::string path = folder.file("store");
  CrashLog queue;
  StoreShape shape;
  const std::size_t runs = kMaxEpochs + 40;
  for (std::uint64_t i = 0; i < runs; ++i) shape.chunks.push_back({{{"t", i, i + 1}}, 4096});
  { const auto store = ExtentStore::create(queue, {path, {}}, shape); }
  std::size_t longest = 0;
  bool fell = false;
  for (std::uint64_t i = 0; i < runs; ++i) {
    const auto store = ExtentStore::open(queue, path);
    write_chunk(*store, i, i + 1, i);
    store->commit(i + 1, std::to_string(i));
    if (i % 40 == 0 || i + 1 == runs) {
      for (std::uint64_t k = 0; k <= i; ++k) ASSERT_TRUE(chunk_is(*store, k, k)) << k << " of " << i;
      const std::size_t length = list_store(path).epochs.size();
      fell |= length < longest;
      longest = std::max(longest, length);
    }
  }
  EXPECT_TRUE(fell);
  EXPECT_GT(longest, kMaxEpochs / 2);
  EXPECT_TRUE(verify_store(path).whole());
}

INSTANTIATE_TEST_SUITE_P(Queues, ExtentStoreTest, testing::Values(&make_uring_queue, &make_thread_pool_queue),
                         [](const auto& tested) { return tested.index == 0 ? "Uring" : "ThreadPool"; });

}  // namespace
}  // namespace terrace
