#include <fmt/core.h>
#include <unistd.h>

#include <memory>

#include "src/cli/commands.h"
#include "src/cli/text.h"
#include "terrace/store.h"

namespace terrace {
namespace {

std::string step_text(const std::optional<std::uint64_t>& step) {
  return step ? fmt::format("step {}", *step) : "nothing committed yet";
}

std::string segment_text(const StoreListing::Segment& segment) {
  return fmt::format("{}{}[{}:{}]", segment.tensor, segment.slice.empty() ? "" : " " + segment.slice,
                     segment.begin, segment.end);
}

int list(const std::string& path) {
  const StoreListing store = list_store(path);
  fmt::print("store      {} ({})\n", store.path, store.id);
  fmt::print("committed  {}\n", step_text(store.committed_step));
  fmt::print("last run   epoch {}, process {}\n", store.epoch, store.process_id);
  fmt::print("chunks     {} of up to {} elements, {} in all\n", store.chunks.size(),
             grouped(store.chunk_numel), size_text(store.total_bytes));
  std::string streams;
  for (const auto& stream : store.streams) {
    streams += fmt::format("{}{} ({})", streams.empty() ? "" : ", ", stream.name, stream.dtype);
  }
  fmt::print("streams    {}\n", streams);
  for (const auto& file : store.paths) {
    fmt::print("file       {}: {}, {} chunks\n", file.file, size_text(file.bytes), file.chunks);
  }
  if (!store.model.empty()) fmt::print("model      {}\n", store.model);
  if (!store.run_state.empty()) fmt::print("run state  {}\n", store.run_state);
  fmt::print("\n{:>6}  {:>8}  {:>6}  {:>12}  {:>4}  {:>14}  {}\n", "chunk", "step", "epoch", "bytes", "file",
             "offset", "tensors");
  for (std::size_t i = 0; i < store.chunks.size(); ++i) {
    const auto& chunk = store.chunks[i];
    std::string segments;
    for (const auto& segment : chunk.segments)
      segments += (segments.empty() ? "" : " ") + segment_text(segment);
    const std::string step = chunk.committed ? fmt::format("{}", chunk.step) : "initial";
    const std::string epoch = chunk.committed ? fmt::format("{}", chunk.epoch) : "-";
    fmt::print("{:>6}  {:>8}  {:>6}  {:>12}  {:>4}  {:>14}  {}\n", i, step, epoch, chunk.payload_bytes,
               chunk.path, chunk.offset_bytes, segments);
  }
  return kExitOk;
}

int verify(const std::string& path) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [terminal](std::uint64_t done, std::uint64_t total) {
    if (!terminal) return;
    fmt::print(stderr, "\r\x1b[K{} of {}", size_text(done), size_text(total));
    std::fflush(stderr);
  };
  const StoreVerdict verdict = verify_store(path, progress);
  if (terminal) fmt::print(stderr, "\r\x1b[K");
  for (const auto& bad : verdict.bad) fmt::print("bad: {}\n", bad);
  fmt::print("{}: {}; {} extents checked ({}), {} never written, {} bad\n", path,
             step_text(verdict.committed_step), verdict.checked_extents, size_text(verdict.checked_bytes),
             verdict.initial_chunks, verdict.bad.size());
  return verdict.whole() ? kExitOk : kExitError;
}

}  // namespace

void add_store_commands(CLI::App& app, Action& action) {
  const auto path = std::make_shared<std::string>();
  CLI::App* store = app.add_subcommand("store", "Look at a store");
  CLI::App* ls = store->add_subcommand("ls", "What it holds");
  ls->add_option("path", *path, "Folder of the store")->required()->type_name("PATH");
  ls->callback([path, &action] { action = [path] { return list(*path); }; });
  CLI::App* check = store->add_subcommand("verify", "Read the last commit and check every checksum");
  check->add_option("path", *path, "Folder of the store")->required()->type_name("PATH");
  check->callback([path, &action] { action = [path] { return verify(*path); }; });
}

}  // namespace terrace
