// The data of a collective that every rank has entered.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "src/collectives/collective_call.h"
#include "src/collectives/mpi_world.h"

namespace terrace {

// Of one handle. Thread contract: one thread at a time.
class MpiExchange {
 public:
  // rank: in the group. Both outlive this.
  MpiExchange(MpiWorld& world, const MpiGroup& group, int rank);

  // Before the call is entered: memory for what it receives to be folded. May throw bad_alloc.
  void prepare(const CollectiveCall& call);
  // Moves the data and fills in the call's results. Every rank of the group runs it; then it ends on every
  // rank, or the job does.
  void run(CollectiveCall& call, const std::vector<bool>& present);

 private:
  struct Tiles;

  int size() const { return static_cast<int>(group_.world_ranks.size()); }
  int process(int rank) const { return group_.world_ranks[static_cast<std::size_t>(rank)]; }
  void gather_parts(const CollectiveCall& call);
  void exchange(CollectiveCall& call, const std::vector<bool>& present);
  void broadcast(const CollectiveCall& call);
  void fold(CollectiveCall& call, const std::vector<bool>& present);
  void reduce(const CollectiveCall& call);
  template <typename Consume>
  void receive_tiles(const CollectiveCall& call, const std::vector<bool>& present, const Consume& consume);
  void start_tile(const CollectiveCall& call, const std::vector<bool>& present, std::uint64_t begin,
                  std::byte* buffer, MpiBatch& batch);
  void wait(MpiBatch& batch, const CollectiveCall& call);

  MpiWorld& world_;
  const MpiGroup& group_;
  const int rank_;
  const int tag_;
  const std::uint64_t tile_bytes_;
  std::unique_ptr<std::byte[]> buffer_;
  std::uint64_t buffer_bytes_ = 0;
};

}  // namespace terrace
