// One store written by several processes of a run: what they leave is what one would, and nobody writes what
// is not theirs (extent_store_crash_test.cpp: a crash finds it at a whole commit). The processes are handles
// of this one, each with a queue and locks of its own: flock is of an open description.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "io/store_files.h"
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

// The store at `path`, opened by processes that own chunk i where owner(i) says so.
class SharedRun {
 public:
  using Owner = std::function<std::size_t(std::size_t chunk)>;

  SharedRun(const std::string& path, std::size_t processes, Owner owner,
            MakeQueue make_queue = make_thread_pool_queue)
      : owner_(std::move(owner)) {
    for (std::size_t p = 0; p < processes; ++p) {
      queues_.push_back(make_queue({}));
      if (p > 0) {
        stores_.push_back(ExtentStore::join_run(*queues_[p], path, leader().epoch(), own(p)));
        continue;
      }
      stores_.push_back(ExtentStore::open(*queues_[p], path));
      leader().share(own(p));
    }
  }

  ExtentStore& leader() { return *stores_.at(0); }
  ExtentStore& member(std::size_t p = 1) { return *stores_.at(p); }
  ExtentStore& owner(std::size_t chunk) { return *stores_.at(owner_(chunk)); }
  std::size_t processes() const { return stores_.size(); }
  void close(std::size_t p) { stores_.at(p).reset(); }

  std::vector<bool> own(std::size_t p) {
    std::vector<bool> own;
    const std::size_t chunks = stores_.empty() ? 0 : leader().shape().chunks.size();
    for (std::size_t i = 0; i < chunks; ++i) own.push_back(owner_(i) == p);
    return own;
  }

  std::vector<CommitShare> prepare(std::uint64_t step) {
    std::vector<CommitShare> shares;
    for (std::size_t p = 1; p < processes(); ++p) shares.push_back(member(p).prepare(step));
    return shares;
  }
  void commit(std::uint64_t step, const std::string& run_state) {
    const std::vector<CommitShare> shares = prepare(step);
    leader().commit(step, run_state, shares);
    for (std::size_t p = 1; p < processes(); ++p) member(p).committed(step);
  }

 private:
  Owner owner_;
  std::vector<std::unique_ptr<IoQueue>> queues_;
  std::vector<std::unique_ptr<ExtentStore>> stores_;
};

std::size_t round_robin(std::size_t chunk) {
  return chunk % 2;
}

class SharedStoreTest : public testing::Test {
 protected:
  // Two folders below the store's own, so that it can be copied whole.
  std::string make_store(const StoreShape& shape = small_shape()) {
    const std::string path = folder_.file("store");
    for (const char* disk : {"/disk1", "/disk2"}) fs::create_directories(path + disk);
    CrashLog queue;
    const auto store =
        ExtentStore::create(queue, {path, {{path + "/disk1", 0}, {path + "/disk2", 0}}}, shape);
    return path;
  }

  // Opens it as one process does; nothing may hold it.
  ShadowCut reopened(const std::string& path) {
    CrashLog queue;
    const auto store = ExtentStore::open(queue, path);
    return read_all(*store);
  }

  TempDir folder_{fast_folder()};
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every file of the store but the holder's note.
std::vector<std::pair<std::string, std::string>> files_of(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file() && entry.path().filename() != kHolderName)
      files.emplace_back(entry.path().lexically_relative(path), bytes_of(entry.path()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Steps of a run: which chunks each writes, and whether it is committed.
struct Steps {
  struct Step {
    std::vector<std::size_t> chunks;
    bool commit = false;
  };
  std::vector<Step> steps;

  static Steps random(std::mt19937_64& random, std::size_t chunks, int count) {
    Steps steps;
    for (int s = 0; s < count; ++s) {
      Step& step = steps.steps.emplace_back();
      for (std::size_t i = 0; i < chunks; ++i) {
        if (random() % 3 == 0) step.chunks.push_back(i);
      }
      step.commit = random() % 2 == 0;
    }
    return steps;
  }
};

// Each process writes its chunks of a step on a thread of its own.
void write_steps(SharedRun& run, const Steps& steps, std::uint64_t first) {
  std::uint64_t step = first;
  for (const Steps::Step& now : steps.steps) {
    std::vector<std::thread> threads;
    for (std::size_t p = 0; p < run.processes(); ++p) {
      threads.emplace_back([&, p] {
        for (const std::size_t i : now.chunks) {
          if (&run.owner(i) == &run.member(p)) write_chunk(run.member(p), i, step, step * 100 + i);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (now.commit) run.commit(step, "state after " + std::to_string(step));
    ++step;
  }
}

class SharedStoreBytes : public SharedStoreTest, public testing::WithParamInterface<MakeQueue> {};

// The files do not tell how many processes wrote them, over several runs with other numbers of them.
TEST_P(SharedStoreBytes, AreThoseThatOneProcessWrites) {
  const std::string one = make_store(), many = folder_.file("many");
  fs::copy(one, many, fs::copy_options::recursive);
  std::mt19937_64 random(21);
  constexpr std::size_t kProcesses[] = {2, 1, 4, 3, 2};
  std::uint64_t step = 1, committed = 0;
  std::vector<std::uint64_t> seeds(small_shape().chunks.size(), 0), kept = seeds;
  for (const std::size_t processes : kProcesses) {
    const Steps steps = Steps::random(random, seeds.size(), 7);
    const std::uint64_t salt = random();
    {
      SharedRun alone(
          one, 1, [](std::size_t) { return 0; }, GetParam());
      write_steps(alone, steps, step);
    }
    {
      SharedRun run(
          many, processes, [&](std::size_t i) { return (salt + i * 7) % processes; }, GetParam());
      ASSERT_EQ(run.leader().committed_step().value_or(0), committed);
      for (std::size_t p = 1; p < processes; ++p) {
        EXPECT_EQ(run.member(p).committed_step(), run.leader().committed_step());
        EXPECT_EQ(run.member(p).run_state(), run.leader().run_state());
        EXPECT_EQ(run.member(p).epoch(), run.leader().epoch());
        for (std::size_t i = 0; i < kept.size(); ++i) {  // of any process, before the run's first commit
          ASSERT_EQ(run.member(p).written(i), kept[i] != 0);
          EXPECT_TRUE(kept[i] == 0 || chunk_is(run.member(p), i, kept[i])) << i;
        }
      }
      write_steps(run, steps, step);
    }
    ASSERT_EQ(files_of(many), files_of(one)) << processes << " processes, from step " << step;
    for (const Steps::Step& now : steps.steps) {
      for (const std::size_t i : now.chunks) seeds[i] = step * 100 + i;
      if (now.commit) {
        kept = seeds;
        committed = step;
      }
      ++step;
    }
    seeds = kept;
  }
  CrashLog queue;
  const auto store = ExtentStore::open(queue, many);
  EXPECT_EQ(store->committed_step(), committed);
  EXPECT_EQ(store->run_state(), "state after " + std::to_string(committed));
  for (std::size_t i = 0; i < kept.size(); ++i) {
    EXPECT_TRUE(kept[i] == 0 || chunk_is(*store, i, kept[i])) << i;
  }
  EXPECT_TRUE(verify_store(many).whole());
}

INSTANTIATE_TEST_SUITE_P(Queues, SharedStoreBytes, testing::Values(&make_io_queue, &make_thread_pool_queue),
                         [](const auto& tested) { return tested.index == 0 ? "Default" : "ThreadPool"; });

// What was prepared, but not committed by the leader, is void; so is what was written and not prepared.
TEST_F(SharedStoreTest, OnlyTheLeadersRecordCommits) {
  const std::string path = make_store();
  {
    SharedRun run(path, 2, round_robin);
    for (std::size_t i = 0; i < 5; ++i) write_chunk(run.owner(i), i, 1, 10 + i);
    run.commit(1, "one");
    for (std::size_t i = 0; i < 5; ++i) write_chunk(run.owner(i), i, 2, 20 + i);
    run.prepare(2);
  }
  CrashLog queue;
  const auto store = ExtentStore::open(queue, path);
  EXPECT_EQ(store->committed_step(), 1u);
  EXPECT_EQ(store->run_state(), "one");
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(chunk_is(*store, i, 10 + i)) << i;
}

TEST_F(SharedStoreTest, ACommitCarriesWhatOldRunsLeft) {
  const std::string path = make_store();
  for (std::uint64_t run = 0; run < 5; ++run) {  // chunk i is of run i alone
    SharedRun shared(path, 1 + run % 3, [&](std::size_t i) { return i % (1 + run % 3); });
    write_chunk(shared.owner(run), run, run + 1, 70 + run);
    shared.commit(run + 1, "");
    shared.commit(run + 1, "");  // nothing is new: nothing is to be done
  }
  EXPECT_EQ(list_store(path).epochs.size(), 5u);
  {
    SharedRun shared(path, 3, [](std::size_t i) { return i % 3; });
    shared.commit(9, "nobody wrote");
    shared.commit(10, "nobody wrote once more");
  }
  CrashLog queue;
  const auto store = ExtentStore::open(queue, path);
  EXPECT_EQ(store->committed_step(), 10u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(chunk_is(*store, i, 70 + i)) << i;
}

TEST_F(SharedStoreTest, AMemberMayReadWhileTheLeaderAlreadyWrites) {
  const std::string path = make_store();
  {
    CrashLog queue;
    const auto store = ExtentStore::open(queue, path);
    for (std::size_t i = 0; i < 5; ++i) write_chunk(*store, i, 3, 30 + i);
    store->commit(3, "three");
  }
  const auto first = make_thread_pool_queue({}), second = make_thread_pool_queue({});
  const auto leader = ExtentStore::open(*first, path);
  leader->share({true, false, true, false, true});
  write_chunk(*leader, 0, 4, 99);
  const auto member =
      ExtentStore::join_run(*second, path, leader->epoch(), {false, true, false, true, false});
  EXPECT_EQ(member->committed_step(), 3u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(chunk_is(*member, i, 30 + i)) << i;
}

TEST_F(SharedStoreTest, WhatIsNotItsPartIsRefused) {
  const std::string path = make_store();
  SharedRun run(path, 2, round_robin);
  ExtentStore &leader = run.leader(), &member = run.member();
  const auto refused = [](const std::string& words, const std::function<void()>& body) {
    EXPECT_THAT(thrown(ErrorCode::internal, body), HasSubstr(words));
  };
  refused("chunk 0 (embedding[0:1024]) is another process's to write", [&] { write_chunk(member, 0, 1, 1); });
  refused("is another process's to write", [&] { write_chunk(leader, 1, 1, 1); });
  refused("by a process that is not the leader", [&] { member.commit(1, ""); });
  refused("is prepared by a process that is no member", [&] { leader.prepare(1); });
  refused("that was not prepared", [&] { member.committed(1); });
  refused("that was not prepared", [&] { leader.committed(1); });
  write_chunk(member, 1, 2, 21);
  refused("a commit of step 1 after a write of step 2", [&] { member.prepare(1); });

  const std::vector<CommitShare> shares{member.prepare(2)};
  refused("a commit of step 2 is prepared before that of step 2 was told of", [&] { member.prepare(2); });
  refused("is written during a commit", [&] { write_chunk(member, 3, 2, 1); });
  refused("a commit of step 3 that was not prepared", [&] { member.committed(3); });
  EXPECT_TRUE(chunk_is(member, 1, 21));  // reads go on
  refused("a commit by 1 processes that do not answer for every chunk once",
          [&] { leader.commit(2, "two"); });
  refused("a commit by 3 processes that do not answer for every chunk once", [&] {
    leader.commit(2, "two", std::vector<CommitShare>{shares[0], shares[0]});
  });
  leader.commit(2, "two", shares);
  member.committed(2);

  refused("a write of step 2 after the commit of step 2", [&] { write_chunk(member, 1, 2, 1); });
  refused("a write of step 2 after the commit of step 2", [&] { write_chunk(leader, 0, 2, 1); });
  refused("a commit of step 1 after that of step 2", [&] { member.prepare(1); });
  refused("is another process's: what it holds since", [&] { static_cast<void>(chunk_is(leader, 1, 21)); });
  refused("is another process's: what it holds since", [&] { static_cast<void>(member.written(0)); });
  refused("is another process's: what it holds since", [&] { static_cast<void>(member.version(0)); });
  refused("two commits of step 2 of a shared store",
          [&] { leader.commit(2, "again", std::vector<CommitShare>{member.prepare(2)}); });
  run.close(0);
  run.close(1);
  const ShadowCut cut = reopened(path);
  EXPECT_EQ(cut.step, 2u);
  EXPECT_EQ(cut.run_state, "two");
}

TEST_F(SharedStoreTest, AMembersFailedWriteIsToldWhenItPrepares) {
  const std::string path = make_store();
  CrashLog first, second;
  {
    const auto leader = ExtentStore::open(first, path);
    leader->share({true, false, true, false, true});
    const auto member =
        ExtentStore::join_run(second, path, leader->epoch(), {false, true, false, true, false});
    second.before_event = [](std::size_t) { throw std::runtime_error("the disk is on fire"); };
    EXPECT_THROW(write_chunk(*member, 1, 1, 1), std::runtime_error);
    EXPECT_THROW(static_cast<void>(member->prepare(1)), std::runtime_error);
    EXPECT_THROW(write_chunk(*member, 3, 1, 1), std::runtime_error);
  }
  EXPECT_FALSE(reopened(path).step);
}

TEST_F(SharedStoreTest, AnotherRunWaitsForTheLastOfThem) {
  const std::string path = make_store();
  CrashLog queue;
  const StoreOpenOptions at_once{.lock_wait_ms = 0};
  const auto busy = [&] { return thrown(ErrorCode::busy, [&] { ExtentStore::open(queue, path, at_once); }); };
  SharedRun run(path, 3, [](std::size_t i) { return i % 3; });
  EXPECT_THAT(busy(), HasSubstr("is in use by process " + std::to_string(::getpid())));
  run.close(0);
  busy();
  run.close(2);
  busy();
  run.close(1);
  EXPECT_NO_THROW(ExtentStore::open(queue, path, at_once));
}

TEST_F(SharedStoreTest, JoiningWantsTheRunsEpoch) {
  const std::string path = make_store();
  CrashLog first, second;
  const StoreOpenOptions at_once{.lock_wait_ms = 0};
  const std::vector<bool> own{false, true, false, true, false};
  auto leader = ExtentStore::open(first, path);
  const std::uint64_t epoch = leader->epoch();
  const auto join = [&](std::uint64_t at) { return ExtentStore::join_run(second, path, at, own, at_once); };
  EXPECT_THAT(thrown(ErrorCode::busy, [&] { join(epoch); }), HasSubstr("is locked")) << "not shared yet";
  leader->share({true, false, true, false, true});
  EXPECT_NO_THROW(join(epoch));
  EXPECT_THAT(thrown(ErrorCode::busy, [&] { join(epoch - 1); }),
              HasSubstr("another run has opened it (epoch 2, this run's is 1)"));
  leader.reset();
  leader = ExtentStore::open(first, path);  // another run
  leader->share({true, false, true, false, true});
  EXPECT_THAT(thrown(ErrorCode::busy, [&] { join(epoch); }), HasSubstr("another run has opened it"));
  EXPECT_THAT(thrown(ErrorCode::internal, [&] { leader->share({true}); }),
              HasSubstr("1 owners for 5 chunks"));
}

TEST_F(SharedStoreTest, OneExtentAChunkIsRefused) {
  CrashLog queue;
  const std::string path = folder_.file("store");
  const auto store = ExtentStore::create(queue, {path, {}, false}, small_shape());
  EXPECT_THAT(thrown(ErrorCode::unsupported,
                     [&] {
                       store->share({true, false, true, false, true});
                     }),
              HasSubstr("one extent a chunk (commit.every_steps = 0) cannot be shared by processes"));
}

// The list of epochs has room for so many runs; each leaves one chunk behind that no later run touches.
TEST_F(SharedStoreTest, AFullListOfEpochsIsMadeShort) {
  StoreShape shape;
  const std::size_t runs = kMaxEpochs + 20;
  for (std::uint64_t i = 0; i < runs; ++i) shape.chunks.push_back({{{"t", i, i + 1}}, 4096});
  const std::string path = make_store(shape);
  std::size_t longest = 0;
  bool fell = false;
  CrashLog queue;
  for (std::uint64_t i = 0; i < runs; ++i) {
    if (i > 0 && i + 40 < kMaxEpochs) {  // quickly to where the list is nearly full
      const auto store = ExtentStore::open(queue, path);
      write_chunk(*store, i, i + 1, i);
      store->commit(i + 1, "");
      continue;
    }
    SharedRun run(path, 3, [&](std::size_t chunk) { return (chunk + i) % 3; });
    write_chunk(run.owner(i), i, i + 1, i);
    run.commit(i + 1, std::to_string(i));
    const std::size_t length = list_store(path).epochs.size();
    fell |= length < longest;
    longest = std::max(longest, length);
    run.commit(i + 1, std::to_string(i));
  }
  EXPECT_TRUE(fell);
  EXPECT_GT(longest, kMaxEpochs - 3);
  const auto store = ExtentStore::open(queue, path);
  for (std::uint64_t k = 0; k < runs; ++k) ASSERT_TRUE(chunk_is(*store, k, k)) << k;
  EXPECT_TRUE(verify_store(path).whole());
}

}  // namespace
}  // namespace terrace
