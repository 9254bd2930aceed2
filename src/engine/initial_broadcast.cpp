#include "src/engine/initial_broadcast.h"

#include <exception>
#include <utility>

namespace terrace {

InitialChunks broadcast_initial(Communicator& world, const std::vector<Chunk>& chunks,
                                std::span<const std::uint32_t> which,
                                const std::function<void(const Chunk&, float*)>& draw,
                                const std::function<bool(std::uint32_t)>& keeps) {
  InitialChunks kept;
  try {
    for (const std::uint32_t c : which) {
      std::vector<float> values(chunks[c].numel);
      draw(chunks[c], values.data());
      world.broadcast({"initial parameters", chunks[c].unit, 0}, WireType::f32, 0,
                      std::as_writable_bytes(std::span(values)));
      if (keeps(c)) kept.emplace(c, std::move(values));
    }
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  }
  return kept;
}

}  // namespace terrace
