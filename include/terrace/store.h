// A store seen from outside: what it holds, and whether it is whole. Readers take no lock and change nothing;
// they may look at a store that a run is writing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

struct StoreListing {
  struct Stream {
    std::string name;
    std::string dtype;
  };
  struct Path {
    std::string file;         // the data file, as found now
    std::uint64_t bytes = 0;  // its size
    std::size_t chunks = 0;   // that lie on it
  };
  struct Segment {
    std::string tensor;
    std::uint64_t begin = 0;  // elements of the logical, unpadded tensor
    std::uint64_t end = 0;
    std::uint64_t steps = 0;  // the optimizer's step count, as committed
    std::string slice;        // empty: of the whole tensor
  };
  struct Chunk {
    std::vector<Segment> segments;
    bool committed = false;   // false: reads as its initial value
    std::uint64_t epoch = 0;  // that wrote the committed extent, at `step`
    std::uint64_t step = 0;
    std::uint64_t payload_bytes = 0;
    std::size_t path = 0;            // index into paths
    std::uint64_t offset_bytes = 0;  // of the committed extent; of the first where there is none
  };
  struct Epoch {
    std::uint64_t epoch = 0;
    std::optional<std::uint64_t> committed_step;
  };

  std::string path;
  std::string id;                               // 32 hexadecimal digits
  std::optional<std::uint64_t> committed_step;  // none: nothing was ever committed
  std::uint64_t epoch = 0;                      // of the last run that opened it
  std::uint64_t process_id = 0;                 // of that run
  std::uint64_t chunk_numel = 0;
  std::uint64_t total_bytes = 0;  // of all data files
  std::string model;              // free text of the writer (JSON)
  std::string run_state;          // as committed
  std::vector<Stream> streams;
  std::vector<Epoch> epochs;
  std::vector<Path> paths;
  std::vector<Chunk> chunks;
};

// Reads the manifest, the record and every trailer. Throws not_found by name for what is missing (with the
// tensors that lie on it), corrupt for a manifest, record or cut that does not add up, busy when a run
// commits faster than that can be read. Cost: two reads of 4 KiB a chunk.
StoreListing list_store(const std::string& path);

struct StoreVerdict {
  std::optional<std::uint64_t> committed_step;
  std::size_t checked_extents = 0;  // of the last commit, the run state's included
  std::uint64_t checked_bytes = 0;
  std::size_t initial_chunks = 0;  // never written: nothing to check
  std::vector<std::string> bad;    // one for each bad extent: chunk, tensors, path, offset, wanted and got
  bool whole() const { return bad.empty(); }
};

// Reads every extent of the last commit and checks its checksum. Throws as list_store does; a bad extent is
// not thrown but listed. `progress` (may be empty) is told bytes checked and bytes in all. Cost: reads the
// committed half of the store; memory: one extent.
StoreVerdict verify_store(const std::string& path,
                          const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

}  // namespace terrace
