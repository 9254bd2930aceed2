// What every IoQueue must do, on every kind of file: run on each queue with O_DIRECT, through the page cache,
// and on a file system in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "io/io_probe.h"
#include "src/base/units.h"
#include "tests/support/io_fixture.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPiece = 16 * kKiB;
constexpr std::uint64_t kBlock = 4096;

struct Kind {
  const char* name;
  std::unique_ptr<IoQueue> (*make)(const IoQueueOptions&);
  const char* folder;  // null: the test's folder
  bool direct;
};

std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  return info.param.name;
}

class IoQueueConformance : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const Kind& kind = GetParam();
    if (std::string(kind.name).starts_with("uring") && !probe_io_uring().available) {
      GTEST_SKIP() << probe_io_uring().detail;
    }
    const std::string parent = kind.folder == nullptr ? testing::TempDir() : kind.folder;
    if (!std::filesystem::is_directory(parent)) GTEST_SKIP() << parent << " is not there";
    std::string why;
    if (kind.direct && !probe_direct_io(parent, &why)) GTEST_SKIP() << parent << ": no O_DIRECT: " << why;
    folder_ = std::make_unique<TempDir>(parent);
  }

  std::unique_ptr<IoQueue> make(IoQueueOptions options = {.depth = 8, .piece_bytes = kPiece}) {
    return GetParam().make(options);
  }

  int flags() const { return O_RDWR | O_CREAT | O_CLOEXEC | (GetParam().direct ? O_DIRECT : 0); }
  std::unique_ptr<OpenFile> open(const std::string& name = "data") {
    return std::make_unique<OpenFile>(folder_->file(name), flags());
  }

  std::unique_ptr<TempDir> folder_;
  AlignedMemory memory_{4 * kMiB, "a test"};
  AlignedMemory other_{4 * kMiB, "a test"};
};

std::vector<std::uint64_t> sizes_around(std::uint64_t granule) {
  std::vector<std::uint64_t> sizes;
  for (std::int64_t k = 0; k <= 3; ++k) {
    for (const std::int64_t d :
         {-4097, -4096, -513, -512, -511, -2, -1, 0, 1, 2, 511, 512, 513, 4095, 4096, 4097}) {
      const std::int64_t size = k * static_cast<std::int64_t>(granule) + d;
      if (size >= 0) sizes.push_back(static_cast<std::uint64_t>(size));
    }
  }
  return sizes;
}

// Every size, against a shadow of the whole file: what a transfer does not name stays as it was.
TEST_P(IoQueueConformance, RoundTripsOfEverySizeAroundPiecesAndBlocks) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  const std::uint64_t file_bytes = 128 * kKiB, begin = 8 * kKiB;
  std::vector<std::byte> shadow(file_bytes);
  fill_random(shadow.data(), file_bytes, 1);
  std::copy(shadow.begin(), shadow.end(), memory_.data());
  write(*queue, id, 0, memory_.data(), file_bytes);
  std::uint64_t seed = 2;
  for (const std::uint64_t granule : {kBlock, kPiece}) {
    for (const std::uint64_t bytes : sizes_around(granule)) {
      fill_random(memory_.data(), bytes, ++seed);
      std::copy_n(memory_.data(), bytes, shadow.data() + begin);
      write(*queue, id, begin, memory_.data(), bytes);
      std::fill_n(other_.data(), file_bytes, std::byte{0xEE});
      read(*queue, id, begin, other_.data(), bytes);
      ASSERT_TRUE(std::equal(other_.data(), other_.data() + bytes, shadow.data() + begin)) << bytes;
      ASSERT_EQ(other_.data()[bytes], std::byte{0xEE}) << bytes << ": wrote past the buffer's end";
      read(*queue, id, 0, other_.data(), file_bytes);
      ASSERT_TRUE(std::equal(shadow.begin(), shadow.end(), other_.data())) << bytes;
    }
  }
}

TEST_P(IoQueueConformance, ATailAtTheEndOfTheFileExtendsIt) {
  const auto queue = make();
  for (const std::uint64_t bytes : {std::uint64_t{1}, kBlock - 1, kBlock + 1, kPiece + 511}) {
    const auto file = open("tail" + std::to_string(bytes));
    const IoFile id = queue->register_file(file->fd(), file->path());
    fill_random(memory_.data(), bytes, bytes);
    write(*queue, id, 0, memory_.data(), bytes);
    read(*queue, id, 0, other_.data(), bytes);
    EXPECT_TRUE(std::equal(other_.data(), other_.data() + bytes, memory_.data())) << bytes;
    struct stat status {};
    ::fstat(file->fd(), &status);
    EXPECT_GE(static_cast<std::uint64_t>(status.st_size), bytes);
  }
}

// Disjoint transfers of random size, direction and priority, many at once, against a shadow file.
TEST_P(IoQueueConformance, RandomMixedWorkMatchesAShadow) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  const std::uint64_t slot_bytes = 64 * kKiB, slots = 32;
  const std::span<std::byte> both[] = {memory_.span(), other_.span()};
  queue->register_buffers(both);
  std::vector<std::byte> shadow(slots * slot_bytes);
  fill_random(memory_.data(), shadow.size(), 3);
  std::copy_n(memory_.data(), shadow.size(), shadow.data());
  write(*queue, id, 0, memory_.data(), shadow.size());

  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    struct Read {
      std::uint64_t offset, bytes;
    };
    std::vector<Read> reads;
    std::atomic<int> failed{0};
    for (std::uint64_t s = 0; s < slots; ++s) {
      const std::uint64_t at = s * slot_bytes + random() % 4 * kBlock;
      const std::uint64_t bytes = random() % (slot_bytes - 3 * kBlock + 1);
      const auto priority = static_cast<IoPriority>(random() % kIoPriorities);
      const auto count = [&](std::exception_ptr error) { failed += error != nullptr; };
      if (random() % 2 == 0) {
        fill_random(memory_.data() + at, bytes, random());
        std::copy_n(memory_.data() + at, bytes, shadow.data() + at);
        queue->submit({IoDirection::write, priority, id, at, memory_.data() + at, bytes, count});
      } else {
        reads.push_back({at, bytes});
        const IoTicket ticket =
            queue->submit({IoDirection::read, priority, id, at, other_.data() + at, bytes, count});
        if (random() % 2 == 0) queue->promote(ticket);
      }
    }
    queue->drain();
    ASSERT_EQ(failed, 0);
    for (const Read& r : reads) {
      ASSERT_TRUE(
          std::equal(other_.data() + r.offset, other_.data() + r.offset + r.bytes, shadow.data() + r.offset));
    }
  }
  read(*queue, id, 0, other_.data(), shadow.size());
  EXPECT_TRUE(std::equal(shadow.begin(), shadow.end(), other_.data()));
  queue->flush(id);
}

TEST_P(IoQueueConformance, StatsCountWhatMoved) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  write(*queue, id, 0, memory_.data(), 3 * kPiece + kBlock);
  read(*queue, id, kBlock, memory_.data(), 2 * kPiece);
  const IoQueueStats stats = queue->stats();
  EXPECT_EQ(stats.written_bytes, 3 * kPiece + kBlock);
  EXPECT_EQ(stats.read_bytes, 2 * kPiece);
  EXPECT_EQ(stats.pieces, 5u);  // a last block alone rides along
  EXPECT_GT(stats.busy_us, 0u);
}

TEST_P(IoQueueConformance, RegisteredAndOtherMemoryGiveTheSameBytes) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  // Two buffers that touch: a piece across their border belongs to neither.
  const std::span<std::byte> halves[] = {{memory_.data(), kMiB + kBlock},
                                         {memory_.data() + kMiB + kBlock, kMiB}};
  queue->register_buffers(halves);
  fill_random(memory_.data(), 3 * kMiB, 5);  // the last third is not registered
  write(*queue, id, 0, memory_.data(), 3 * kMiB);
  read(*queue, id, 0, other_.data(), 3 * kMiB);
  EXPECT_TRUE(std::equal(other_.data(), other_.data() + 3 * kMiB, memory_.data()));
  std::fill_n(memory_.data(), 3 * kMiB, std::byte{0});
  read(*queue, id, 0, memory_.data(), 3 * kMiB);
  EXPECT_TRUE(std::equal(other_.data(), other_.data() + 3 * kMiB, memory_.data()));
}

// --- order
// -----------------------------------------------------------------------------------------------------

class Order {
 public:
  std::function<void(std::exception_ptr)> record(std::string name) {
    return [this, name](std::exception_ptr error) {
      const std::lock_guard guard(mutex_);
      names_.push_back(error ? name + " failed" : name);
    };
  }
  std::vector<std::string> names() {
    const std::lock_guard guard(mutex_);
    return names_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> names_;
};

TEST_P(IoQueueConformance, ADemandedReadPassesPrefetchesAndBothPassWriteBacks) {
  const auto file = open();
  ASSERT_EQ(::ftruncate(file->fd(), kMiB), 0);
  const auto gate = std::make_shared<Gate>();
  const auto queue = make({.depth = 1, .piece_bytes = kPiece, .threads = 1, .hooks = gate});
  const IoFile id = queue->register_file(file->fd(), file->path());
  Order order;
  const auto add = [&](IoDirection direction, IoPriority priority, std::string name) {
    return queue->submit({direction, priority, id, 0, memory_.data(), 2 * kPiece, order.record(name)});
  };
  add(IoDirection::read, IoPriority::prefetch, "first");  // holds the only place
  gate->await_arrival();
  add(IoDirection::write, IoPriority::write_back, "write back");
  add(IoDirection::read, IoPriority::prefetch, "prefetch");
  const IoTicket wanted = add(IoDirection::read, IoPriority::prefetch, "promoted");
  add(IoDirection::read, IoPriority::demand, "demand");
  queue->promote(wanted);
  gate->open();
  queue->drain();
  queue->promote(wanted);  // ended: no effect
  EXPECT_EQ(order.names(),
            (std::vector<std::string>{"promoted", "demand", "first", "prefetch", "write back"}));
}

TEST_P(IoQueueConformance, WriteBacksMoveUnderAnEndlessStreamOfDemands) {
  const auto file = open();
  ASSERT_EQ(::ftruncate(file->fd(), kMiB), 0);
  for (const std::uint32_t depth : {1u, 4u}) {
    const auto queue = make({.depth = depth, .piece_bytes = kPiece, .threads = depth});
    const IoFile id = queue->register_file(file->fd(), file->path());
    std::atomic<bool> written{false};
    std::function<void(std::uint64_t)> again = [&](std::uint64_t chain) {
      queue->submit({IoDirection::read, IoPriority::demand, id, 0, memory_.data() + chain * kBlock, kBlock,
                     [&, chain](std::exception_ptr error) {
                       if (!error && !written) again(chain);
                     }});
    };
    for (std::uint32_t chain = 0; chain < 2 * depth; ++chain) again(chain);
    queue->submit({IoDirection::write, IoPriority::write_back, id, 8 * kPiece, other_.data(), 10 * kPiece,
                   [&](std::exception_ptr) { written = true; }});
    while (!written) std::this_thread::yield();
    while (queue->stats().read_bytes == 0) std::this_thread::yield();
    queue->drain();
  }
}

// --- errors
// ----------------------------------------------------------------------------------------------------

TEST_P(IoQueueConformance, ReadingPastTheEndOfTheFileIsAnErrorInWords) {
  const auto file = open();
  ASSERT_EQ(::ftruncate(file->fd(), kPiece + 1000), 0);
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  const std::string error = error_of([&] { read(*queue, id, 0, memory_.data(), 2 * kPiece); });
  EXPECT_EQ(error, "I/O failed: read of " + file->path() +
                       " at offset 16384: wanted 16384 bytes, got 1000: end of file");
  EXPECT_THAT(error_of([&] { read(*queue, id, kMiB, memory_.data(), 1); }), HasSubstr("got 0: end of file"));
  read(*queue, id, kPiece, memory_.data(), 1000);  // to the very end is none
  EXPECT_THAT(error_of([&] { read(*queue, id, kPiece, memory_.data(), 1001); }),
              HasSubstr("wanted 1001 bytes, got 1000"));
}

TEST_P(IoQueueConformance, ABadDescriptorIsAnErrorInWords) {
  const auto queue = make();
  const IoFile id = queue->register_file(9999, "nowhere");
  EXPECT_EQ(error_of([&] { read(*queue, id, 4096, memory_.data(), 10); }),
            "I/O failed: read of nowhere at offset 4096: wanted 10 bytes, got 0: Bad file descriptor");
  EXPECT_THAT(error_of([&] { queue->flush(id); }), HasSubstr("flush of nowhere: Bad file descriptor"));
}

TEST_P(IoQueueConformance, WritingToAReadOnlyFileIsAnErrorInWords) {
  open();
  const OpenFile file(folder_->file("data"), O_RDONLY | (GetParam().direct ? O_DIRECT : 0));
  const auto queue = make();
  const IoFile id = queue->register_file(file.fd(), file.path());
  EXPECT_EQ(
      error_of([&] { write(*queue, id, 0, memory_.data(), 4 * kPiece); }),
      "I/O failed: write of " + file.path() + " at offset 0: wanted 16384 bytes, got 0: Bad file descriptor");
}

TEST_P(IoQueueConformance, AFullDiskIsAnErrorInWords) {
  const OpenFile full("/dev/full", O_RDWR);
  const auto queue = make();
  const IoFile id = queue->register_file(full.fd(), full.path());
  EXPECT_EQ(
      error_of([&] { write(*queue, id, 4096, memory_.data(), 8192); }),
      "I/O failed: write of /dev/full at offset 4096: wanted 8192 bytes, got 0: No space left on device");
}

TEST_P(IoQueueConformance, AFileSizeLimitIsAnErrorInWords) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{kPiece + 2 * kBlock, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { write(*queue, id, kPiece, memory_.data(), kPiece); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(error, "I/O failed: write of " + file->path() +
                       " at offset 16384: wanted 16384 bytes, got 8192: File too large");
  EXPECT_GE(queue->stats().resumed_pieces, 1u);
}

TEST_P(IoQueueConformance, OneFailureDoesNotTouchOthers) {
  const auto file = open();
  const auto queue = make();
  const IoFile good = queue->register_file(file->fd(), file->path());
  const IoFile bad = queue->register_file(9999, "nowhere");
  std::atomic<int> good_ended{0}, bad_failed{0};
  for (int i = 0; i < 50; ++i) {
    queue->submit({IoDirection::write, IoPriority::prefetch, good, static_cast<std::uint64_t>(i) * kPiece,
                   memory_.data(), kPiece, [&](std::exception_ptr e) { good_ended += e == nullptr; }});
    queue->submit({IoDirection::write, IoPriority::prefetch, bad, 0, memory_.data(), 5 * kPiece,
                   [&](std::exception_ptr e) { bad_failed += e != nullptr; }});
  }
  queue->drain();
  EXPECT_EQ(good_ended, 50);
  EXPECT_EQ(bad_failed, 50);
}

TEST_P(IoQueueConformance, MisuseIsRefused) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  EXPECT_THAT(error_of([&] { read(*queue, id + 1, 0, memory_.data(), 1); }), HasSubstr("file 1 of 1"));
  if (GetParam().direct) {
    EXPECT_THAT(error_of([&] { read(*queue, id, 512, memory_.data(), 1); }), HasSubstr("multiples of 4096"));
    EXPECT_THAT(error_of([&] { read(*queue, id, 0, memory_.data() + 1, 1); }),
                HasSubstr("multiples of 4096"));
  }
  EXPECT_THAT(error_of([&] { make({.depth = 0}); }), HasSubstr("wanted 1 to 4096, got 0"));
  EXPECT_THAT(error_of([&] { make({.depth = 1, .piece_bytes = 5000}); }),
              HasSubstr("wanted a multiple of 4096"));
}

// --- ends
// ------------------------------------------------------------------------------------------------------

TEST_P(IoQueueConformance, TheDestructorEndsWhatIsInFlightAndCancelsTheRest) {
  const auto file = open();
  ASSERT_EQ(::ftruncate(file->fd(), kMiB), 0);
  const auto gate = std::make_shared<Gate>();
  IoQueue* const queue = make({.depth = 2, .piece_bytes = kPiece, .threads = 2, .hooks = gate}).release();
  const IoFile id = queue->register_file(file->fd(), file->path());
  std::atomic<int> fine{0}, cancelled{0}, other{0};
  const auto count = [&](std::exception_ptr error) {
    const std::string text = error_of([&] {
      if (error) std::rethrow_exception(error);
    });
    ++(text.empty() ? fine : text.starts_with("cancelled: read of " + file->path()) ? cancelled : other);
  };
  for (int i = 0; i < 20; ++i) {
    queue->submit({IoDirection::read, IoPriority::demand, id, 0, memory_.data() + i * kPiece, kPiece,
                   [&, i](std::exception_ptr error) {
                     count(error);
                     if (i == 19)
                       queue->submit({IoDirection::read, IoPriority::demand, id, 0, other_.data(), 1, count});
                   }});
  }
  queue->submit({IoDirection::read, IoPriority::write_back, id, 0, other_.data(), kPiece, count});
  gate->await_arrival();
  std::thread opener([&] {
    while (cancelled == 0) std::this_thread::yield();  // the destructor has begun
    gate->open();
  });
  delete queue;
  opener.join();
  EXPECT_GE(fine, 1);  // what was in flight
  EXPECT_LE(fine, 2);
  EXPECT_EQ(fine + cancelled, 22);  // one of them submitted by a cancelled one's `done`
  EXPECT_EQ(other, 0);
}

TEST_P(IoQueueConformance, DrainWaitsForDoneAndForNothingLater) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  queue->drain();  // nothing submitted
  for (int i = 0; i < 50; ++i) {
    bool called = false;  // not atomic: drain orders it
    queue->submit({IoDirection::write, IoPriority::write_back, id, 0, memory_.data(), 3 * kBlock,
                   [&](std::exception_ptr) { called = true; }});
    queue->drain();
    ASSERT_TRUE(called);
  }
}

TEST_P(IoQueueConformance, ManyThreadsSubmitAndEnd) {
  const auto file = open();
  const auto queue = make();
  const IoFile id = queue->register_file(file->fd(), file->path());
  fill_random(memory_.data(), 4 * kMiB, 6);
  std::atomic<int> ended{0}, failed{0};
  for (int round = 0; round < 2;
       ++round) {  // writes, then reads; each thread is gone before its transfers end
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < 50; ++i) {
          const std::uint64_t at = (t * 50 + i) * 20480;
          queue->submit({round == 0 ? IoDirection::write : IoDirection::read, static_cast<IoPriority>(i % 3),
                         id, at, (round == 0 ? memory_ : other_).data() + at, 20480,
                         [&](std::exception_ptr error) {
                           ++ended;
                           failed += error != nullptr;
                         }});
          if (i % 10 == 0) queue->drain();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    queue->drain();
  }
  EXPECT_EQ(ended, 400);
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(std::equal(memory_.data(), memory_.data() + 200 * 20480, other_.data()));
}

TEST_P(IoQueueConformance, DepthOneAndManyRequestsDoNotHang) {
  const auto file = open();
  ASSERT_EQ(::ftruncate(file->fd(), kMiB), 0);
  const auto queue = make({.depth = 1, .piece_bytes = kPiece, .threads = 1});
  const IoFile id = queue->register_file(file->fd(), file->path());
  const int total = 100'000;
  std::atomic<int> left{total}, ended{0};
  std::function<void(std::exception_ptr)> next = [&](std::exception_ptr error) {
    ASSERT_EQ(error, nullptr);
    ++ended;
    if (--left >= 0)
      queue->submit({IoDirection::read, IoPriority::demand, id, 0, memory_.data(), kBlock, next});
  };
  for (int i = 0; i < total / 2 && --left >= 0; ++i) {  // half from outside, half from `done`
    queue->submit({IoDirection::read, IoPriority::prefetch, id, 0, memory_.data(), kBlock, next});
  }
  while (ended < total) queue->drain();
  EXPECT_EQ(ended, total);
}

TEST_P(IoQueueConformance, DescriptorsDoNotPileUp) {
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator{});
  };
  const auto file = open();
  const auto before = count();
  for (int i = 0; i < 100; ++i) {
    const auto queue = make();
    const IoFile id = queue->register_file(file->fd(), file->path());
    write(*queue, id, 0, memory_.data(), kBlock);
  }
  EXPECT_EQ(count(), before);
}

TEST_P(IoQueueConformance, MoreFilesThanTheQueueRegisters) {
  const auto queue = make();
  std::vector<std::unique_ptr<OpenFile>> files;
  for (std::uint64_t i = 0; i < 300; ++i) {
    files.push_back(open("data" + std::to_string(i)));
    const IoFile id = queue->register_file(files.back()->fd(), files.back()->path());
    fill_random(memory_.data(), kBlock, i);
    write(*queue, id, 0, memory_.data(), kBlock);
    read(*queue, id, 0, other_.data(), kBlock);
    ASSERT_TRUE(std::equal(other_.data(), other_.data() + kBlock, memory_.data())) << i;
  }
}

constexpr Kind kKinds[] = {
    {"uring_direct", make_uring_queue, nullptr, true},
    {"uring_cached", make_uring_queue, nullptr, false},
    {"uring_memory", make_uring_queue, "/dev/shm", false},
    {"threads_direct", make_thread_pool_queue, nullptr, true},
    {"threads_cached", make_thread_pool_queue, nullptr, false},
    {"threads_memory", make_thread_pool_queue, "/dev/shm", false},
};
INSTANTIATE_TEST_SUITE_P(Each, IoQueueConformance, testing::ValuesIn(kKinds), kind_name);

}  // namespace
}  // namespace terrace
