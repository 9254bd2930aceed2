// What goes wrong with a store ends in words: damage, missing files, full disks, locks, failing transfers,
// kills.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "io/extent_store.h"
#include "io/store_record.h"
#include "terrace/store.h"
#include "tests/support/crash_log.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/store_helpers.h"
#include "tests/support/store_shadow.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class StoreFault : public testing::Test {
 protected:
  // Two commits: every chunk at step 1, then chunks 0 to 3 at step 2.
  void make_store() {
    const auto store = ExtentStore::create(queue_, {path_, {}}, small_shape());
    for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, 1, i);
    store->commit(1, "one");
    for (std::size_t i = 0; i < 4; ++i) write_chunk(*store, i, 2, 10 + i);
    store->commit(2, "two");
  }

  TempDir folder_;
  std::string path_ = resolve(folder_.file("store"));
  CrashLog queue_;
};

TEST_F(StoreFault, MissingPathsAreRefusedWithTheirTensors) {
  const std::string a = resolve(folder_.file("a"));
  const std::string b = resolve(folder_.file("b"));
  fs::create_directories(a);
  fs::create_directories(b);
  StoreShape shape;
  for (std::uint64_t i = 0; i < 30; ++i)
    shape.chunks.push_back({{{"tensor" + std::to_string(i), 0, 1}}, 4096});
  { ExtentStore::create(queue_, {path_, {{a, 0}, {b, 0}}}, shape)->commit(1, ""); }
  const StoreListing listing = list_store(path_);
  fs::rename(b, folder_.file("gone"));
  for (const std::string& why : {thrown(ErrorCode::not_found, [&] { ExtentStore::open(queue_, path_); }),
                                 thrown(ErrorCode::not_found, [&] { list_store(path_); })}) {
    EXPECT_THAT(why, HasSubstr(b));
    EXPECT_THAT(why, testing::Not(HasSubstr(a + "/")));
    EXPECT_THAT(why, HasSubstr("tensor0, tensor1, "));
    EXPECT_THAT(why, HasSubstr("more"));
  }
  fs::rename(folder_.file("gone"), b);
  EXPECT_EQ(ExtentStore::open(queue_, path_)->committed_step(), 1u);
  const std::string file = listing.paths[0].file;
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_THAT(thrown(ErrorCode::corrupt, [&] { ExtentStore::open(queue_, path_); }), HasSubstr("cut off"));
  thrown(ErrorCode::not_found, [&] { ExtentStore::open(queue_, folder_.file("nowhere")); });
  EXPECT_THAT(thrown(ErrorCode::not_found,
                     [&] {
                       ExtentStore::create(queue_, {folder_.file("n"), {{"/no/such/disk", 0}}}, shape);
                     }),
              HasSubstr("/no/such/disk"));
  EXPECT_FALSE(fs::exists(folder_.file("n")));
}

TEST_F(StoreFault, NoRoomAtCreationLeavesNothingBehind) {
  const std::string volume = resolve(folder_.file("volume"));
  fs::create_directories(volume);
  const std::string deep = folder_.file("made/for/it");
  StoreShape shape = small_shape();
  std::string why = thrown(ErrorCode::does_not_fit, [&] {
    ExtentStore::create(queue_, {deep, {{volume, 1u << 20}}}, shape);
  });
  EXPECT_THAT(why, HasSubstr(volume));
  EXPECT_THAT(why, HasSubstr("1048576"));
  shape.chunks.push_back({{{"huge", 0, 1}}, std::uint64_t{1} << 50});
  thrown(ErrorCode::does_not_fit, [&] { ExtentStore::create(queue_, {deep, {{volume, 0}}}, shape); });
  EXPECT_FALSE(fs::exists(folder_.file("made")));
  EXPECT_TRUE(fs::is_empty(volume));
}

// Allocation itself fails, on the second path, after the first was made.
TEST_F(StoreFault, FailingAllocationLeavesNothingBehind) {
  const std::string a = resolve(folder_.file("a"));
  const std::string b = resolve(folder_.file("b"));
  fs::create_directories(a);
  fs::create_directories(b);
  StoreShape shape = small_shape();
  shape.chunks.push_back({{{"large", 0, 1}}, 8u << 20});
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4u << 20, 4u << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    CrashLog queue;
    try {
      ExtentStore::create(queue, {path_, {{a, 3u << 20}, {b, 0}}}, shape);
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::does_not_fit ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(fs::is_empty(a));
  EXPECT_TRUE(fs::is_empty(b));
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(StoreFault, ASecondOpenerIsRefusedByNameAndProcess) {
  make_store();
  const auto store = ExtentStore::open(queue_, path_);
  const std::string me = std::to_string(::getpid());
  CrashLog other;
  const std::string why = thrown(ErrorCode::busy, [&] { ExtentStore::open(other, path_, {100}); });
  EXPECT_THAT(why, HasSubstr(path_));
  EXPECT_THAT(why, HasSubstr("process " + me + " (this one)"));
  const pid_t child = ::fork();
  if (child == 0) {
    CrashLog forked;
    try {
      ExtentStore::open(forked, path_, {100});
    } catch (const Error& error) {
      const std::string text = error.what();
      const bool named =
          text.find("process " + me) != std::string::npos && text.find(path_) != std::string::npos;
      ::_exit(error.code() == ErrorCode::busy && named ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  write_chunk(*store, 0, 3, 1);  // the first is unharmed
  store->commit(3, "");
}

TEST_F(StoreFault, OpeningWaitsForAKilledHolder) {
  make_store();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    CrashLog forked;
    const auto store = ExtentStore::open(forked, path_);
    [[maybe_unused]] const ssize_t put = ::write(ready[1], "x", 1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  thrown(ErrorCode::busy, [&] { ExtentStore::open(queue_, path_, {0}); });
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::kill(child, SIGKILL);
  });
  const auto store = ExtentStore::open(queue_, path_);  // retries for five seconds
  killer.join();
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(store->committed_step(), 2u);
}

// A store that is closed lets go of its lock even where the queue keeps the file open.
TEST_F(StoreFault, ManyStoresUnderASmallLimitOfFiles) {
  const TempDir fast(fast_folder());
  const std::string path = fast.file("store");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    int code = 1;
    try {
      const auto queue = make_io_queue({});
      for (std::uint64_t i = 0; i < 100; ++i) {
        const std::string name = path + std::to_string(i % 3);
        if (i % 3 == i) {
          const auto store = ExtentStore::create(*queue, {name, {}}, small_shape());
          store->commit(i, "");
        } else {
          const auto store = ExtentStore::open(*queue, name, {0});
          write_chunk(*store, i % 5, i, i);
          store->commit(i, "");
        }
      }
      for (int i = 0; i < 40; ++i) ExtentStore::create(*queue, {path + "one", {}, false}, small_shape());
      for (int i = 0; i < 40; ++i) list_store(path + "0");
      code = 0;
    } catch (const std::exception& error) {
      ::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(WIFEXITED(status));
}

TEST_F(StoreFault, AFailedWriteStopsTheStore) {
  { ExtentStore::create(queue_, {path_, {}}, small_shape())->commit(1, "one"); }
  for (const bool flush : {false, true}) {
    FaultPlan plan;
    plan.only_path = ".extents";
    // Opening flushes once; a commit's first flush is the second.
    (flush ? plan.fail_flush_at : plan.fail_write_at) = flush ? 2 : 3;
    {
      FaultyQueue faulty(&make_thread_pool_queue, {}, plan);
      const auto store = ExtentStore::open(faulty, path_);
      write_chunk(*store, 0, 2, 0);
      write_chunk(*store, 1, 2, 1);
      const std::string why = thrown(ErrorCode::io_failed, [&] {
        write_chunk(*store, 2, 2, 2);
        store->commit(2, "never");
      });
      EXPECT_THAT(why, HasSubstr(".extents"));
      EXPECT_EQ(thrown(ErrorCode::io_failed, [&] { store->commit(2, "never"); }), why);
      EXPECT_EQ(thrown(ErrorCode::io_failed, [&] { write_chunk(*store, 3, 2, 2); }), why);
      EXPECT_EQ(store->committed_step(), 1u);
    }
    const auto store = ExtentStore::open(queue_, path_);
    EXPECT_EQ(store->committed_step(), 1u);
    EXPECT_FALSE(store->written(0));
  }
}

TEST_F(StoreFault, ShortTransfersAndDelaysChangeNothing) {
  FaultPlan plan;
  plan.short_transfers = 0.3;
  plan.interrupts = 0.1;
  plan.again = 0.05;
  plan.reorder = true;
  FaultyQueue faulty(&make_thread_pool_queue, {}, plan);
  auto store = ExtentStore::create(faulty, {path_, {}}, small_shape());
  for (std::uint64_t step = 1; step < 20; ++step) {
    for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, step, step + i);
    for (std::size_t i = 0; i < 5; ++i) ASSERT_TRUE(chunk_is(*store, i, step + i));
    if (step % 5 == 0) {
      store->commit(step, std::to_string(step));
      store.reset();
      store = ExtentStore::open(faulty, path_);
      ASSERT_EQ(store->run_state(), std::to_string(step));
    }
  }
  EXPECT_GT(faulty.counts().shortened, 0u);
}

// A run without commits that was killed leaves what the next creation reclaims.
TEST_F(StoreFault, AKilledRunOfOneExtentAChunkIsReclaimed) {
  const std::string volume = resolve(folder_.file("volume"));
  fs::create_directories(volume);
  const StoreOptions options{path_, {{volume, 0}}, false};
  for (int round = 0; round < 3; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      CrashLog forked;
      const auto store = ExtentStore::create(forked, options, small_shape());
      write_chunk(*store, 0, 1, 1);
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(std::distance(fs::directory_iterator(volume), fs::directory_iterator()), 1);
  }
  { const auto store = ExtentStore::create(queue_, options, small_shape()); }
  EXPECT_TRUE(fs::is_empty(volume));
  EXPECT_TRUE(fs::is_empty(path_));
}

// kill -9 at a random moment of a run that writes and commits without pause.
TEST_F(StoreFault, KilledWritersReopenAtACommit) {
  { ExtentStore::create(queue_, {path_, {}}, small_shape())->commit(0, "0"); }
  std::mt19937_64 random(9);
  std::uint64_t before = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        const auto queue = make_io_queue({});
        const auto store = ExtentStore::open(*queue, path_);
        std::uint64_t step = store->committed_step().value();
        while (true) {
          ++step;
          for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, step, step);
          store->commit(step, std::to_string(step));
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 30000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto store = ExtentStore::open(queue_, path_);
    const std::uint64_t step = store->committed_step().value();
    EXPECT_GE(step, before);
    EXPECT_EQ(store->run_state(), std::to_string(step));
    for (std::size_t i = 0; i < 5 && step > 0; ++i) EXPECT_TRUE(chunk_is(*store, i, step)) << i;
    before = step;
  }
  EXPECT_GT(before, 0u);
}

}  // namespace
}  // namespace terrace
