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
std::uint32_t compare_identity(const std::string& stored, const EngineModel& model, const std::string& path,
                               bool compares_numerics);

}  // namespace terrace
