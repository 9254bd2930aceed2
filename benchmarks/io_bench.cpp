// The queue against a raw io_uring loop on the same file, in turns: read, write, and both at once.
//   io_bench [--path FOLDER] [--depth N] [--rounds N] [--mib N] [--queue uring|threads] [--only
//   read|write|both]
// Prints JSON: GB/s as median and median absolute deviation (MAD) over the rounds. Writes (4 * rounds + 2) *
// mib MiB to a nameless file.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/statistics.h"
#include "io/data_file.h"
#include "io/io_queue.h"
#include "io/raw_uring_loop.h"
#include "src/base/aligned_memory.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::uint64_t kRequestBytes = kMiB;
constexpr std::uint64_t kTransferBytes = 8 * kMiB;  // the queue is given chunks, as a step does
constexpr std::uint64_t kBufferBytes = 64 * kMiB;   // for each direction

struct Settings {
  std::string path = ".";
  unsigned depth = 16;
  unsigned rounds = 5;
  std::uint64_t mib = 512;  // moved in each direction of a measurement
  std::string queue = "uring";
  std::string only;  // one of read, write, both; empty: all
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What the raw loop does, by the queue.
void run_queue(IoQueue& queue, IoFile file, const AlignedMemory& memory, const RawWork& work,
               std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kTransferBytes) {
    const std::uint64_t length = std::min(kTransferBytes, bytes - at);
    std::byte* data = memory.data() + at % kBufferBytes;
    const auto done = [](std::exception_ptr error) {
      if (error) std::terminate();
    };
    if (work.reads) queue.submit({IoDirection::read, IoPriority::prefetch, file, at, data, length, done});
    if (work.writes) {
      queue.submit(
          {IoDirection::write, IoPriority::write_back, file, bytes + at, data + kBufferBytes, length, done});
    }
  }
  queue.drain();
}

nlohmann::json measure(const Settings& settings) {
  const std::uint64_t bytes = settings.mib * kMiB;
  DataFile file(settings.path, DataFile::Mode::temporary);
  file.allocate(2 * bytes);
  AlignedMemory memory(2 * kBufferBytes, "I/O buffers");
  std::memset(memory.data(), 0x5A, memory.size());

  RawUringLoop raw(file, memory, settings.depth);
  const auto make = settings.queue == "threads" ? make_thread_pool_queue : make_uring_queue;
  const auto queue = make({.depth = settings.depth, .piece_bytes = kRequestBytes, .threads = settings.depth});
  const IoFile id = queue->register_file(file.fd(), file.path());
  const std::span<std::byte> buffers[] = {memory.span()};
  queue->register_buffers(buffers);
  for (std::uint64_t at = 0; at < 2 * bytes;
       at += kBufferBytes) {  // the first write of fallocated space is slower
    queue->submit({IoDirection::write, IoPriority::write_back, id, at, memory.data(),
                   std::min(kBufferBytes, 2 * bytes - at), nullptr});
  }
  queue->drain();

  std::map<std::string, RawWork> works{
      {"read", {true, false}}, {"write", {false, true}}, {"both", {true, true}}};
  std::erase_if(works,
                [&](const auto& work) { return !settings.only.empty() && settings.only != work.first; });
  std::map<std::string, std::vector<double>> raw_gbps, queue_gbps, ratio;
  for (unsigned round = 0; round < settings.rounds; ++round) {
    for (const auto& [name, work] : works) {
      double seconds[2];
      for (const unsigned side : {round % 2, 1 - round % 2}) {  // who begins alternates
        const double begin = now_s();
        if (side == 0) raw.run(work, bytes, bytes);
        if (side == 1) run_queue(*queue, id, memory, work, bytes);
        seconds[side] = now_s() - begin;
      }
      const double moved = static_cast<double>(bytes) * (work.reads + work.writes) / 1e9;
      raw_gbps[name].push_back(moved / seconds[0]);
      queue_gbps[name].push_back(moved / seconds[1]);
      ratio[name].push_back(seconds[0] / seconds[1]);
    }
  }
  nlohmann::json results = nlohmann::json::array();
  for (const auto& [name, work] : works) {
    results.push_back({{"name", name},
                       {"raw_gbps", median_and_mad(raw_gbps[name])},
                       {"queue_gbps", median_and_mad(queue_gbps[name])},
                       {"queue_over_raw", median_and_mad(ratio[name])}});
  }
  return {{"benchmark", "io"},
          {"queue", queue->name()},
          {"file_system", file_system_name(settings.path)},
          {"direct", file.direct()},
          {"depth", settings.depth},
          {"request_bytes", kRequestBytes},
          {"rounds", settings.rounds},
          {"bytes_each_way", bytes},
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
    if (key == "--mib") settings.mib = std::stoul(value);
    if (key == "--queue") settings.queue = value;
    if (key == "--only") settings.only = value;
  }
  try {
    std::puts(terrace::measure(settings).dump(2).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
