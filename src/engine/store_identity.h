// What a store says of the run that made it.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

struct EngineModel;

// The text that a store keeps: identity and numerics of the model, and how its chunks are cut.
std::string store_identity(const EngineModel& model, std::uint32_t cut_ranks);

// Throws invalid_argument for a store whose identity differs from the model's in any key, corrupt for a text
// that store_identity did not write. Other numerics are said in the log where `compares_numerics`. Returns
// the number of ranks that the store's chunks are cut for.
//
// Gives the model's tensors the master_only that the store was made with, and says in the log which are now
// frozen that were not, or the reverse. Throws invalid_argument, by name, for a tensor that is no longer
// frozen and whose optimizer states the store lacks.
std::uint32_t compare_identity(const std::string& stored, EngineModel& model, const std::string& path,
                               bool compares_numerics);

}  // namespace terrace
