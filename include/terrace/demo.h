// Demonstrations: what `terrace demo` calls.
#pragma once

#include <string>

#include "terrace/config.h"

namespace terrace {

// What becomes of the mean over the last batch of the first epoch when ranks with unequal numbers of targets
// each take their own mean and those are averaged: loss, gradient and AdamW's update against the exact ones,
// in figures. Trains the steps before that batch in memory, without the configuration's store and placement.
// Of ranks.count ranks, of 2 where it is 1. Throws invalid_argument for a model of more than 2^20 parameters,
// and where train.micro_batches is not that number of ranks.
std::string uneven_mean_demo(const Config& config);

}  // namespace terrace
