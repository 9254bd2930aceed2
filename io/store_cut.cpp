#include "io/store_cut.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "src/base/fail.h"

namespace terrace {

Cut choose_cut(const Record& record, std::span<const Hash128> identities,
               std::span<const ChunkTrailers> trailers) {
  check(identities.size() == trailers.size(), "{} identities for {} chunks", identities.size(),
        trailers.size());
  Cut cut;
  for (std::size_t chunk = 0; chunk < trailers.size(); ++chunk) {
    int chosen = kNoExtent;
    bool damaged = false;
    bool later = false;
    for (int extent = 0; extent < 2; ++extent) {
      const TrailerRead& read = trailers[chunk][extent];
      damaged |= read.state == TrailerRead::State::damaged;
      if (read.state != TrailerRead::State::valid) continue;
      later |= read.trailer.epoch > record.epoch;
      if (!is_committed(record, read.trailer.epoch, read.trailer.step)) continue;
      const auto age = [&](int e) {
        const Trailer& trailer = trailers[chunk][e].trailer;
        return std::tuple(trailer.epoch, trailer.step);
      };
      if (chosen == kNoExtent || age(extent) > age(chosen)) chosen = extent;
    }
    cut.extents.push_back(chosen);
    if (damaged) cut.damaged.push_back(chunk);
    if (later) cut.from_later.push_back(chunk);
    if (chosen != kNoExtent) {
      const Trailer& trailer = trailers[chunk][chosen].trailer;
      cut.sum += cut_term(identities[chunk], trailer.epoch, trailer.step);
    }
  }
  return cut;
}

std::vector<EpochEntry> carried_epochs(std::span<const EpochEntry> epochs,
                                       std::span<const std::uint64_t> carried) {
  const std::set<std::uint64_t> wanted(carried.begin(), carried.end());
  std::vector<EpochEntry> kept;
  for (const EpochEntry& entry : epochs) {
    if (wanted.contains(entry.epoch)) kept.push_back(entry);
  }
  return kept;
}

}  // namespace terrace
