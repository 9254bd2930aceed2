// What the processes of a run must have been given alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/collectives/communicator.h"

namespace terrace {

// Names and values, in the order in which differences are told. A name comes once.
using Settings = std::vector<std::pair<std::string, std::string>>;

// Every rank of `world` calls. Throws invalid_argument, on every rank, where a value or a name is not that of
// all: the first differences, each with its values and the ranks that have them. Cost: one small collective;
// where something differs, a second one with all values.
void require_alike(Communicator& world, const Settings& own);

}  // namespace terrace
