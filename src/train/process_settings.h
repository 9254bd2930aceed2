// What every process of a run must have been started with alike, so that all compile one program and give one
// set of numbers.
#pragma once

#include "src/data/token_file.h"
#include "src/engine/alike.h"
#include "terrace/config.h"
#include "terrace/train.h"

namespace terrace {

// Every key of the configuration but those that are a process's own: how it transfers (io), its threads
// (compute), and where its data and its nvme tier lie. Of these, what must agree all the same: the tokens
// themselves, the number and sizes of the nvme paths, the store's folder, wherever it is seen from. Beside
// them the options and the family of matrix products. `validation` may be null.
Settings process_settings(const Config& config, const TrainOptions& options, const TokenFile& tokens,
                          const TokenFile* validation);

}  // namespace terrace
