#include "tests/support/store_shadow.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "io/store_files.h"

namespace terrace {

StoreShape small_shape() {
  StoreShape shape;
  shape.chunk_numel = 4096;
  shape.streams = {{"master", "fp32"}, {"exp_avg", "fp32"}};
  shape.chunks = {
      {{{"embedding", 0, 1024}}, 8192},
      {{{"embedding", 1024, 1500}, {"block.weight", 0, 300}}, 4096},
      {{{"block.weight", 300, 1000}, {"block.bias", 0, 17}, {"head", 0, 1}}, 12288},
      {{{"head", 1, 2000}}, 4096},
      {{{"head", 2000, 4000}}, 16384},
  };
  shape.model = R"({"layers": 1})";
  return shape;
}

ShadowCut read_all(ExtentStore& store) {
  ShadowCut cut;
  cut.step = store.committed_step();
  cut.run_state = store.run_state();
  for (std::size_t i = 0; i < store.shape().chunks.size(); ++i) {
    ShadowChunk chunk;
    chunk.written = store.written(i);
    if (chunk.written) {
      const std::uint64_t payload_bytes = store.shape().chunks[i].payload_bytes;
      const AlignedBlock block(payload_bytes + kTrailerBytes);
      TransferGroup group;
      store.read(i, block.span(), IoPriority::demand, group.add());
      group.wait();
      chunk.version = store.version(i);
      chunk.payload.assign(block.data(), block.data() + payload_bytes);
    }
    cut.chunks.push_back(std::move(chunk));
  }
  return cut;
}

std::string difference(const ShadowCut& wanted, const ShadowCut& got) {
  const auto text = [](const std::optional<std::uint64_t>& step) {
    return step ? std::to_string(*step) : "none";
  };
  if (wanted.step != got.step)
    return fmt::format("step: wanted {}, got {}", text(wanted.step), text(got.step));
  if (wanted.run_state != got.run_state) return "run state differs";
  if (wanted.chunks.size() != got.chunks.size()) return "number of chunks differs";
  for (std::size_t i = 0; i < wanted.chunks.size(); ++i) {
    const ShadowChunk& w = wanted.chunks[i];
    const ShadowChunk& g = got.chunks[i];
    if (w.written != g.written)
      return fmt::format("chunk {}: written wanted {}, got {}", i, w.written, g.written);
    if (!w.written) continue;
    if (w.version.step != g.version.step) {
      return fmt::format("chunk {}: step wanted {}, got {}", i, w.version.step, g.version.step);
    }
    if (w.version.segment_steps != g.version.segment_steps)
      return fmt::format("chunk {}: step counts differ", i);
    if (w.payload != g.payload) return fmt::format("chunk {}: payload differs", i);
  }
  return {};
}

int match(const std::vector<ShadowCut>& expected, const ShadowCut& got, std::string* why) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string text = difference(expected[i], got);
    if (text.empty()) return static_cast<int>(i);
    *why += "; " + text;
  }
  return -1;
}

std::optional<ShadowCut> open_image(const std::string& root) {
  CrashLog disk;
  try {
    const auto store = ExtentStore::open(disk, root + "/store");
    return read_all(*store);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return std::nullopt;
  }
}

ShadowedStore::ShadowedStore(std::string root, std::uint64_t seed) : root_(std::move(root)), random_(seed) {
  const std::string path = store_path();
  std::filesystem::create_directories(path + "/disk1");
  std::filesystem::create_directories(path + "/disk2");
  const StoreShape shape = small_shape();
  store_ = ExtentStore::create(log_, {path, {{path + "/disk1", 0}, {path + "/disk2", 0}, {path, 0}}}, shape);
  log_.renamed(join(path, kUnfinishedName), join(path, kManifestName));
  now_.chunks.resize(shape.chunks.size());
  marks_.push_back({0, log_.events(), now_});
}

ShadowedStore::ShadowedStore(std::string root, const ShadowedStore& before, std::uint64_t seed)
    : root_(std::move(root)), random_(seed), step_(before.step_ + 1) {
  std::filesystem::create_directories(store_path());
  store_ = ExtentStore::open(log_, store_path());
  now_ = read_all(*store_);
  marks_.push_back({0, 0, now_});
}

ShadowedStore::~ShadowedStore() = default;

void ShadowedStore::write_random_chunk() {
  const std::size_t i = random_() % now_.chunks.size();
  const StoreChunk& chunk = store_->shape().chunks[i];
  const AlignedBlock block(chunk.payload_bytes + kTrailerBytes);
  const std::uint64_t tag = random_();
  for (std::size_t at = 0; at < chunk.payload_bytes; at += 8) {
    const std::uint64_t word = tag + at;
    std::memcpy(block.data() + at, &word, 8);
  }
  ShadowChunk& shadow = now_.chunks[i];
  shadow.written = true;
  shadow.version.step = step_;
  shadow.version.segment_steps.clear();
  for (std::size_t s = 0; s < chunk.segments.size(); ++s)
    shadow.version.segment_steps.push_back(random_() % 1000);
  shadow.payload.assign(block.data(), block.data() + chunk.payload_bytes);
  TransferGroup group;
  writer_of(i).write(i, block.span(), shadow.version, IoPriority::write_back, group.add());
  group.wait();
}

void ShadowedStore::commit() {
  const std::size_t sizes[] = {0, 1, 100, 4096, 5000};
  now_.run_state.assign(sizes[random_() % 5], static_cast<char>('a' + random_() % 26));
  now_.step = step_;
  constexpr std::size_t kNever = ~std::size_t{0};
  marks_.push_back({log_.events(), kNever, now_});  // should it be cut short
  std::vector<CommitShare> shares;
  for (const auto& member : members_) shares.push_back(member->prepare(step_));
  store_->commit(step_, now_.run_state, shares);
  for (const auto& member : members_) member->committed(step_);
  // The last two events are the record's write and its flush.
  marks_.back() = {log_.events() - 1, log_.events(), now_};
}

void ShadowedStore::kill_at(std::size_t event) {
  log_.before_event = [event](std::size_t now) {
    if (now >= event) throw std::runtime_error("killed");
  };
}

bool ShadowedStore::open_after_kill() {
  members_.clear();
  owners_.clear();
  store_.reset();
  log_.before_event = {};
  const std::size_t killed_at = log_.events();
  const std::vector<ShadowCut> allowed = expected_after(killed_at);
  store_ = ExtentStore::open(log_, store_path());
  now_ = read_all(*store_);
  marks_.push_back({killed_at, log_.events(), now_});
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const ShadowCut& cut) { return difference(cut, now_).empty(); });
}

void ShadowedStore::reopen(std::size_t processes) {
  members_.clear();
  store_.reset();
  owners_.clear();
  store_ = ExtentStore::open(log_, store_path());
  now_ = committed();
  if (processes == 1) return;
  for (std::size_t i = 0; i < now_.chunks.size(); ++i) owners_.push_back(random_() % processes);
  for (std::size_t p = 0; p < processes; ++p) {
    std::vector<bool> own;
    for (const std::size_t owner : owners_) own.push_back(owner == p);
    if (p == 0) {
      store_->share(own);
    } else {
      members_.push_back(ExtentStore::join_run(log_, store_path(), store_->epoch(), own));
    }
  }
}

ExtentStore& ShadowedStore::writer_of(std::size_t chunk) {
  const std::size_t owner = owners_.empty() ? 0 : owners_.at(chunk);
  return owner == 0 ? *store_ : *members_.at(owner - 1);
}

std::vector<ShadowCut> ShadowedStore::expected_after(std::size_t prefix) const {
  std::vector<ShadowCut> cuts;
  for (auto mark = marks_.rbegin(); mark != marks_.rend(); ++mark) {
    if (prefix >= mark->may_from) cuts.push_back(mark->cut);
    if (prefix >= mark->lasts_from) break;
  }
  return cuts;
}

}  // namespace terrace
