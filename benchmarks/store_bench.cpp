// The store against a raw io_uring loop on the same file system, in turns: read, write, and both at once.
//   store_bench [--path FOLDER] [--depth N] [--rounds N] [--chunks N] [--chunk-mib N] [--queue uring|threads]
// Prints JSON: GB/s as median and median absolute deviation (MAD) over the rounds, checksums included. Writes
// (4 * rounds + 4) * chunks * chunk-mib MiB in the folder, and removes them.
#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "benchmarks/statistics.h"
#include "io/extent_store.h"
#include "io/raw_uring_loop.h"
#include "src/base/fail.h"

namespace terrace {
namespace {

constexpr std::size_t kSlots = 8;  // chunks under way in each direction

struct Settings {
  std::string path = ".";
  unsigned depth = 16;
  unsigned rounds = 5;
  std::uint64_t chunks = 36;
  std::uint64_t chunk_mib = 12;  // 1 Mi elements, three streams of fp32
  std::string queue = "uring";
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Buffers of one direction. A transfer takes one and hands it back when it has ended.
class Slots {
 public:
  Slots(std::byte* first, std::uint64_t bytes) : first_(first), bytes_(bytes) {
    for (std::size_t i = 0; i < kSlots; ++i) free_.push_back(i);
  }
  std::size_t take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !free_.empty(); });
    const std::size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void hand_back(std::size_t slot) {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
    changed_.notify_all();
  }
  void wait_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_.size() == kSlots; });
  }
  std::span<std::byte> bytes(std::size_t slot) const { return {first_ + slot * bytes_, bytes_}; }

 private:
  std::byte* first_;
  std::uint64_t bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> free_;
};

// Every chunk once in each direction of `work`; writes are half a round ahead of the reads, as in a step.
void run_store(ExtentStore& store, Slots& reads, Slots& writes, const RawWork& work, std::uint64_t step) {
  const std::size_t chunks = store.shape().chunks.size();
  for (std::size_t i = 0; i < chunks; ++i) {
    const auto into = [](Slots& slots, std::size_t slot) {
      return [&slots, slot](std::exception_ptr error) {
        if (error) std::terminate();
        slots.hand_back(slot);
      };
    };
    if (work.reads) {
      const std::size_t slot = reads.take();
      store.read(i, reads.bytes(slot), IoPriority::prefetch, into(reads, slot));
    }
    if (work.writes) {
      const std::size_t slot = writes.take();
      store.write((i + chunks / 2) % chunks, writes.bytes(slot), {step, {step}}, IoPriority::write_back,
                  into(writes, slot));
    }
  }
  reads.wait_all();
  writes.wait_all();
}

nlohmann::json measure(const Settings& settings) {
  if (settings.chunks < 4 * kSlots) {
    fail(ErrorCode::invalid_argument, "--chunks: wanted at least {}, got {}", 4 * kSlots, settings.chunks);
  }
  std::string folder = settings.path + "/store-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    fail(ErrorCode::io_failed, "cannot make a folder in {}", settings.path);
  struct Remove {
    const std::string& path;
    ~Remove() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } const remove{folder};

  const std::uint64_t payload_bytes = settings.chunk_mib * kMiB;
  const std::uint64_t bytes = settings.chunks * payload_bytes;
  StoreShape shape;
  for (std::uint64_t i = 0; i < settings.chunks; ++i)
    shape.chunks.push_back({{{"t", i, i + 1}}, payload_bytes});

  const auto make = settings.queue == "threads" ? make_thread_pool_queue : make_uring_queue;
  const auto queue =
      make({.depth = settings.depth, .piece_bytes = RawUringLoop::kRequestBytes, .threads = settings.depth});
  const std::uint64_t slot_bytes = payload_bytes + kTrailerBytes;
  AlignedMemory memory(2 * kSlots * slot_bytes, "the store's buffers");
  std::memset(memory.data(), 0x5A, memory.size());
  const std::span<std::byte> buffers[] = {memory.span()};
  const bool registered = queue->register_buffers(buffers);
  Slots reads(memory.data(), slot_bytes);
  Slots writes(memory.data() + kSlots * slot_bytes, slot_bytes);

  DataFile raw_file(folder, DataFile::Mode::temporary);
  raw_file.allocate(2 * bytes);
  AlignedMemory raw_memory(2 * std::min<std::uint64_t>(64 * kMiB, bytes), "the raw loop's buffers");
  std::memset(raw_memory.data(), 0x5A, raw_memory.size());
  RawUringLoop raw(raw_file, raw_memory, settings.depth);

  // The first write of allocated space is slower: both extents and both halves are written before anything is
  // timed.
  const auto store = ExtentStore::create(*queue, {folder + "/store", {}}, shape);
  std::uint64_t step = 0;
  std::vector<double> commit_ms;
  const auto commit = [&] {
    const double begin = now_s();
    store->commit(step, "benchmark");
    commit_ms.push_back((now_s() - begin) * 1e3);
  };
  for (const std::uint64_t half : {std::uint64_t{0}, bytes}) {
    run_store(*store, reads, writes, {false, true}, ++step);
    commit();
    raw.run({false, true}, bytes, half);
  }
  commit_ms.clear();

  const std::map<std::string, RawWork> works{
      {"read", {true, false}}, {"write", {false, true}}, {"both", {true, true}}};
  std::map<std::string, std::vector<double>> raw_gbps, store_gbps, ratio;
  for (unsigned round = 0; round < settings.rounds; ++round) {
    for (const auto& [name, work] : works) {
      double seconds[2];
      for (const unsigned side : {round % 2, 1 - round % 2}) {  // who begins alternates
        ++step;
        const double begin = now_s();
        if (side == 0) raw.run(work, bytes, bytes);
        if (side == 1) run_store(*store, reads, writes, work, step);
        seconds[side] = now_s() - begin;
        if (side == 1 && work.writes) commit();
      }
      const double moved = static_cast<double>(bytes) * (work.reads + work.writes) / 1e9;
      raw_gbps[name].push_back(moved / seconds[0]);
      store_gbps[name].push_back(moved / seconds[1]);
      ratio[name].push_back(seconds[0] / seconds[1]);
    }
  }
  nlohmann::json results = nlohmann::json::array();
  for (const auto& [name, work] : works) {
    results.push_back({{"name", name},
                       {"raw_gbps", median_and_mad(raw_gbps[name])},
                       {"store_gbps", median_and_mad(store_gbps[name])},
                       {"store_over_raw", median_and_mad(ratio[name])}});
  }
  return {{"benchmark", "store"},
          {"queue", queue->name()},
          {"file_system", file_system_name(settings.path)},
          {"direct", raw_file.direct()},
          {"registered", registered},
          {"depth", settings.depth},
          {"chunk_bytes", payload_bytes},
          {"rounds", settings.rounds},
          {"bytes_each_way", bytes},
          {"written_bytes", queue->stats().written_bytes + (2 * settings.rounds + 2) * bytes},
          {"commit_ms", median_and_mad(commit_ms)},
          {"results", results}};
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  terrace::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--path") settings.path = value;
    if (key == "--depth") settings.depth = static_cast<unsigned>(std::stoul(value));
    if (key == "--rounds") settings.rounds = static_cast<unsigned>(std::stoul(value));
    if (key == "--chunks") settings.chunks = std::stoul(value);
    if (key == "--chunk-mib") settings.chunk_mib = std::stoul(value);
    if (key == "--queue") settings.queue = value;
  }
  try {
    std::puts(terrace::measure(settings).dump(2).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
