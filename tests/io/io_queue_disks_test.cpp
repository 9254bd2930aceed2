// Several disks: each has its own depth, and none waits for another. Two files that a hook counts as two
// disks.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "io/io_hooks.h"
#include "io/io_probe.h"
#include "src/base/units.h"
#include "tests/support/io_fixture.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

constexpr std::uint64_t kPiece = 16 * kKiB;
constexpr int kDepth = 3;

// Holds results back until `most` pieces are under way, or for two seconds.
class Counting : public IoHooks {
 public:
  Counting(bool two, int holds_until) : two_(two), holds_until_(holds_until) {}
  std::uint64_t disk_of(const std::string& path, std::uint64_t device) override {
    return two_ ? std::uint64_t{path.ends_with("b")} : device;
  }
  std::uint64_t ask_bytes(const IoCall& call) override {  // under the queue's lock
    const int under_way = ++now_;
    most = std::max(most.load(), under_way);
    return call.data.size();
  }
  std::int64_t see_result(const IoCall&, std::int64_t result) override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (most < holds_until_ && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --now_;
    return result;
  }
  std::atomic<int> most{0};

 private:
  const bool two_;
  const int holds_until_;
  std::atomic<int> now_{0};
};

class IoQueueDisks : public testing::Test {
 protected:
  std::unique_ptr<OpenFile> open(const std::string& name) {
    return std::make_unique<OpenFile>(folder_.file(name), O_RDWR | O_CREAT | O_CLOEXEC);
  }
  IoRequest piece(IoFile file, int i, std::atomic<int>& done) {
    return {.direction = IoDirection::write,
            .file = file,
            .offset_bytes = static_cast<std::uint64_t>(i) * kPiece,
            .data = memory_.data(),
            .bytes = kPiece,
            .done = [&done](std::exception_ptr error) { done += error ? 1000 : 1; }};
  }
  // Of one disk at most kDepth pieces are under way, of two as many each.
  void expect_depths(std::unique_ptr<IoQueue> (*make)(const IoQueueOptions&), bool holds) {
    for (const bool two : {false, true}) {
      const int wanted = two ? 2 * kDepth : kDepth;
      const auto hooks = std::make_shared<Counting>(two, holds ? wanted : 0);
      const auto a = open("a");
      const auto b = open("b");
      const auto queue = make({.depth = kDepth, .piece_bytes = kPiece, .threads = kDepth, .hooks = hooks});
      const IoFile files[] = {queue->register_file(a->fd(), a->path()),
                              queue->register_file(b->fd(), b->path())};
      std::atomic<int> done{0};
      for (int i = 0; i < 80; ++i) queue->submit(piece(files[i % 2], i, done));
      queue->drain();
      EXPECT_EQ(done, 80);
      EXPECT_EQ(hooks->most, wanted);
    }
  }

  TempDir folder_;
  AlignedMemory memory_{kMiB, "a test"};
};

TEST_F(IoQueueDisks, EachHasItsOwnDepthOnThreads) {
  expect_depths(make_thread_pool_queue, true);
}

// One thread sees all results there, so none is held; all that may start stands in the ring before the first.
TEST_F(IoQueueDisks, EachHasItsOwnDepthOnUring) {
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  expect_depths(make_uring_queue, false);
}

// On threads, which block in the kernel: a disk that does not answer must not hold them all.
TEST_F(IoQueueDisks, OneThatDoesNotAnswerHoldsUpNoOther) {
  class OneSlow : public IoHooks {
   public:
    std::uint64_t disk_of(const std::string& path, std::uint64_t) override { return path.ends_with("slow"); }
    std::int64_t see_result(const IoCall& call, std::int64_t result) override {
      while (call.path.ends_with("slow") && !answers)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return result;
    }
    std::atomic<bool> answers{false};
  };
  const auto hooks = std::make_shared<OneSlow>();
  const auto slow = open("slow");
  const auto fast = open("fast");
  const auto queue =
      make_thread_pool_queue({.depth = kDepth, .piece_bytes = kPiece, .threads = kDepth, .hooks = hooks});
  const IoFile slow_file = queue->register_file(slow->fd(), slow->path());
  const IoFile fast_file = queue->register_file(fast->fd(), fast->path());
  std::atomic<int> slow_done{0}, fast_done{0};
  for (int i = 0; i < 20; ++i) queue->submit(piece(slow_file, i, slow_done));
  for (int i = 0; i < 20; ++i) queue->submit(piece(fast_file, i, fast_done));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (fast_done != 20 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(fast_done, 20);
  EXPECT_EQ(slow_done, 0);
  hooks->answers = true;
  queue->drain();
  EXPECT_EQ(slow_done, 20);
}

}  // namespace
}  // namespace terrace
