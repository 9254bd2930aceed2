// The model that a store is checked against: what each chunk must read as, kept in plain memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "io/extent_store.h"
#include "tests/support/crash_log.h"

namespace terrace {

struct ShadowChunk {
  bool written = false;
  ChunkVersion version;
  std::vector<std::byte> payload;
};

struct ShadowCut {
  std::optional<std::uint64_t> step;
  std::string run_state;
  std::vector<ShadowChunk> chunks;
};

// Five small chunks of different sizes over four tensors.
StoreShape small_shape();

// What the store holds now, read through it. Throws what reading throws.
ShadowCut read_all(ExtentStore& store);

// Empty when equal; else the first difference in words.
std::string difference(const ShadowCut& wanted, const ShadowCut& got);

// The index of the cut in `expected` that `got` equals, or -1 with the reason why not.
int match(const std::vector<ShadowCut>& expected, const ShadowCut& got, std::string* why);

// Opens the image in root/store and says what it holds; a refusal is a failure of the test.
std::optional<ShadowCut> open_image(const std::string& root);

// A store that is written at random beside its shadow, on a disk that logs.
class ShadowedStore {
 public:
  // Creates a store in root/store, with data in it and in two folders below it.
  ShadowedStore(std::string root, std::uint64_t seed);
  // Opens the store in root/store (an image); throws what opening throws.
  explicit ShadowedStore(std::string root, const ShadowedStore& before, std::uint64_t seed);
  ~ShadowedStore();

  void write_random_chunk();  // as of the present step
  void next_step() { ++step_; }
  void commit();
  // Closes, opens: what was not committed is gone. Then by so many processes (each of them one handle here),
  // which own the chunks at random; they commit a step once only.
  void reopen(std::size_t processes = 1);

  // From the given event on nothing reaches the disk any more, and what was asked for throws; the process is
  // gone, the machine is not. open_after_kill() opens what stands there and says whether the shadow allows
  // it.
  void kill_at(std::size_t event);
  bool open_after_kill();

  // What a crash after `prefix` events may open at: the last commit that must have lasted, and the one that
  // may have.
  std::vector<ShadowCut> expected_after(std::size_t prefix) const;

  const CrashLog& log() const { return log_; }
  const std::string& root() const { return root_; }
  ExtentStore& store() { return *store_; }
  const ShadowCut& now() const { return now_; }
  const ShadowCut& committed() const { return marks_.back().cut; }
  std::size_t creation_events() const { return marks_.front().lasts_from; }

 private:
  struct Mark {  // a commit: with at least `lasts_from` events it has lasted, with `may_from` it may have
    std::size_t may_from = 0;
    std::size_t lasts_from = 0;
    ShadowCut cut;
  };

  std::string store_path() const { return root_ + "/store"; }
  ExtentStore& writer_of(std::size_t chunk);

  std::string root_;
  std::mt19937_64 random_;
  CrashLog log_;
  std::unique_ptr<ExtentStore> store_;
  std::vector<std::unique_ptr<ExtentStore>> members_;  // the processes but the first
  std::vector<std::size_t> owners_;                    // of each chunk; empty: one process
  std::uint64_t step_ = 1;
  ShadowCut now_;
  std::vector<Mark> marks_;
};

}  // namespace terrace
