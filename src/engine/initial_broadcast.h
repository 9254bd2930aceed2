// How ranks that drew different initial values come to start from the same ones: rank 0's are broadcast, as
// data-parallel training does it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "src/collectives/communicator.h"
#include "src/plan/chunk_table.h"

namespace terrace {

// By chunk: its numel initial master parameters, padding (zeros) included.
using InitialChunks = std::map<std::uint32_t, std::vector<float>>;

// For each chunk of `which`, in that order: `draw` fills in this rank's own values (into zeros), then rank
// 0's take their place, in the memory of every rank. Returns those that `keeps` says yes to. Every rank of
// `world` calls at the same time with the same `which`. Memory: the chunks kept and one more. Errors as
// Communicator has them; a rank that fails in `draw` aborts the world.
InitialChunks broadcast_initial(Communicator& world, const std::vector<Chunk>& chunks,
                                std::span<const std::uint32_t> which,
                                const std::function<void(const Chunk&, float*)>& draw,
                                const std::function<bool(std::uint32_t)>& keeps);

}  // namespace terrace
