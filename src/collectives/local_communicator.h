// Ranks that are threads of one process: each copies what it receives straight out of the senders' memory.
#pragma once

#include <memory>
#include <vector>

#include "src/collectives/communicator.h"

namespace terrace {

// A world of `size` ranks; the i-th handle is rank i's, to be handed to its thread and destroyed there.
// Throws invalid_argument for a size below 1, a time limit outside 1 ms to 1 day, or a negative link rate.
//
// A collective that every rank has entered ends on every rank; all others throw on every rank. Data is copied
// once, by the receiving rank's thread, with no buffer between; a sender is held until its receivers have
// read. Cost beside the copies: two wake-ups of the group (barrier: one), some tens of microseconds.
std::vector<std::unique_ptr<Communicator>> make_local_world(int size,
                                                            const CommunicatorOptions& options = {});

}  // namespace terrace
