// Faults below and around the queues: what they resume, and what they say when they cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "io/io_probe.h"
#include "src/base/units.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/io_fixture.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPiece = 16 * kKiB;
const IoQueueOptions kOptions{.depth = 4, .piece_bytes = kPiece};

struct Kind {
  const char* name;
  FaultyQueue::Make make;
  int direct;
};

class IoQueueFault : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().make == &make_uring_queue && !probe_io_uring().available) {
      GTEST_SKIP() << probe_io_uring().detail;
    }
    std::string why;
    if (GetParam().direct != 0 && !probe_direct_io(folder_.path(), &why))
      GTEST_SKIP() << "no O_DIRECT: " << why;
    file_ = std::make_unique<OpenFile>(folder_.file("data"), O_RDWR | O_CREAT | GetParam().direct);
  }

  void start(const FaultPlan& plan) {
    queue_.reset();
    queue_ = std::make_unique<FaultyQueue>(GetParam().make, kOptions, plan);
    id_ = queue_->register_file(file_->fd(), file_->path());
  }

  // Many transfers of many sizes out and back; every byte is compared.
  void round_trip() {
    const std::uint64_t slot_bytes = 6 * kPiece, slots = 20;
    std::vector<std::uint64_t> sizes;
    for (std::uint64_t s = 0; s < slots; ++s) sizes.push_back((s * 7919 * 3) % (slot_bytes - 5) + 1);
    fill_random(memory_.data(), slot_bytes * slots, 1);
    std::fill_n(other_.data(), slot_bytes * slots, std::byte{0});
    std::atomic<int> failed{0};
    for (const IoDirection direction : {IoDirection::write, IoDirection::read}) {
      std::byte* data = direction == IoDirection::write ? memory_.data() : other_.data();
      for (std::uint64_t s = 0; s < slots; ++s) {
        queue_->submit({direction, static_cast<IoPriority>(s % 3), id_, s * slot_bytes, data + s * slot_bytes,
                        sizes[s], [&](std::exception_ptr error) { failed += error != nullptr; }});
      }
      queue_->drain();
    }
    ASSERT_EQ(failed, 0);
    for (std::uint64_t s = 0; s < slots; ++s) {
      const std::byte* out = memory_.data() + s * slot_bytes;
      const std::byte* back = other_.data() + s * slot_bytes;
      ASSERT_TRUE(std::equal(out, out + sizes[s], back)) << sizes[s];
      ASSERT_EQ(back[sizes[s]], std::byte{0});
    }
  }

  TempDir folder_;
  AlignedMemory memory_{4 * kMiB, "a test"};
  AlignedMemory other_{4 * kMiB, "a test"};
  std::unique_ptr<OpenFile> file_;
  std::unique_ptr<FaultyQueue> queue_;
  IoFile id_ = 0;
};

TEST_P(IoQueueFault, ShortTransfersAreResumed) {
  start({.short_transfers = 0.7});
  round_trip();
  EXPECT_GT(queue_->counts().shortened, 50u);
  EXPECT_GT(queue_->stats().resumed_pieces, queue_->counts().shortened / 2);  // a short tail may do
}

// A count that is no multiple of a sector: with O_DIRECT the broken sector is written again.
TEST_P(IoQueueFault, WritesThatEndAnywhereAreResumed) {
  start({.ragged_writes = 0.6});
  round_trip();
  EXPECT_GT(queue_->counts().ragged, 50u);
}

TEST_P(IoQueueFault, InterruptedTransfersAreResumed) {
  start({.interrupts = 0.4, .again = 0.1});
  round_trip();
  EXPECT_GT(queue_->counts().interrupted, 20u);
  EXPECT_GT(queue_->counts().again, 0u);
}

TEST_P(IoQueueFault, EverythingAtOnceChangesNothing) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    start({.seed = seed,
           .short_transfers = 0.3,
           .interrupts = 0.2,
           .again = 0.05,
           .delays = 0.2,
           .reorder = true});
    round_trip();
    EXPECT_GT(queue_->counts().delayed, 0u);
    EXPECT_GT(queue_->counts().reordered, 0u);
  }
}

TEST_P(IoQueueFault, AnInterruptThatNeverEndsIsAnError) {
  start({.interrupts = 1.0});
  EXPECT_THAT(error_of([&] { write(*queue_, id_, 0, memory_.data(), 4096); }),
              HasSubstr("Interrupted system call"));
}

// Each call of a transfer fails in turn: the transfer says so, once, with the place, and others go on.
TEST_P(IoQueueFault, AnErrorAtEveryCallIsNamed) {
  for (const int error : {EIO, ENOSPC}) {
    for (const bool writing : {false, true}) {
      for (std::uint64_t call = 1; call <= 4; ++call) {
        start({.fail_read_at = writing ? 0 : call, .fail_write_at = writing ? call : 0, .error = error});
        ASSERT_EQ(::ftruncate(file_->fd(), 8 * kPiece), 0);
        const std::string text = error_of([&] {
          transfer(*queue_, writing ? IoDirection::write : IoDirection::read, id_, kPiece, memory_.data(),
                   4 * kPiece);
        });
        EXPECT_THAT(text, HasSubstr("I/O failed: " + std::string(writing ? "write of " : "read of ") +
                                    file_->path() + " at offset "));
        EXPECT_THAT(text, HasSubstr(": wanted 16384 bytes, got 0: " + std::string(std::strerror(error))));
        EXPECT_EQ(queue_->counts().failed, 1u);
        read(*queue_, id_, 0, other_.data(), 8 * kPiece);
      }
    }
  }
}

TEST_P(IoQueueFault, AShortTransferThenAnErrorSaysHowFarItCame) {
  start({.short_transfers = 1.0, .fail_write_at = 2});
  const std::string text = error_of([&] { write(*queue_, id_, 0, memory_.data(), 8192); });
  EXPECT_THAT(text, HasSubstr("wanted 8192 bytes, got "));
  EXPECT_THAT(text, testing::Not(HasSubstr("got 0:")));
}

TEST_P(IoQueueFault, AFailedFlushIsNamed) {
  start({.fail_flush_at = 2});
  queue_->flush(id_);
  EXPECT_EQ(error_of([&] { queue_->flush(id_); }),
            "I/O failed: flush of " + file_->path() + ": Input/output error");
  queue_->flush(id_);
}

TEST_P(IoQueueFault, FaultsKeepToTheirFile) {
  start({.fail_write_at = 1, .only_path = "other"});
  const OpenFile file(folder_.file("other"), O_RDWR | O_CREAT);
  const IoFile other = queue_->register_file(file.fd(), file.path());
  write(*queue_, id_, 0, memory_.data(), kPiece);
  EXPECT_THAT(error_of([&] { write(*queue_, other, 0, memory_.data(), kPiece); }),
              HasSubstr("Input/output error"));
}

TEST_P(IoQueueFault, AReorderingQueuePromotesDrainsAndCloses) {
  start({.reorder = true});
  ASSERT_EQ(::ftruncate(file_->fd(), kMiB), 0);
  std::atomic<int> ended{0};
  for (std::uint64_t i = 0; i < 30; ++i) {
    const IoTicket ticket =
        queue_->submit({IoDirection::read, IoPriority::prefetch, id_, 0, memory_.data() + i * kPiece, kPiece,
                        [&](std::exception_ptr) { ++ended; }});
    if (i % 3 == 0) queue_->promote(ticket);
    if (i == 15) {
      queue_->drain();
      EXPECT_EQ(ended, 16);
    }
  }
  queue_.reset();
  EXPECT_EQ(ended, 30);
}

constexpr Kind kKinds[] = {{"uring_direct", make_uring_queue, O_DIRECT},
                           {"uring_cached", make_uring_queue, 0},
                           {"threads_direct", make_thread_pool_queue, O_DIRECT},
                           {"threads_cached", make_thread_pool_queue, 0}};
INSTANTIATE_TEST_SUITE_P(Each, IoQueueFault, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace terrace
