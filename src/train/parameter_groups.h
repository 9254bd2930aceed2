// Which tensors are optimized in which way: optimizer.groups over a model's tensor names.
#pragma once

#include <vector>

#include "kernels/cpu/adamw.h"
#include "src/plan/model_shape.h"
#include "terrace/config.h"

namespace terrace {

// Gives every tensor its index into groups_at(): with or without weight decay as it comes (TensorShape::group
// 0 or 1), in that of the first entry of optimizer.groups that matches its name, where one does; and says
// which are frozen. Throws invalid_argument for an entry that no tensor belongs to (with the nearest name, or
// an entry that takes its tensors), and where all tensors are frozen.
void assign_parameter_groups(const Config& config, ModelShape& model);

// Hyperparameters by TensorShape::group at a learning rate of the schedule: 0 with weight decay, 1 without;
// 2 + 2 * i and 3 + 2 * i the same of entry i of optimizer.groups, whose weight_decay stands in both.
std::vector<AdamWHyper> groups_at(const Config& config, double lr);

// A line for each entry: how many tensors and elements it has.
void log_parameter_groups(const Config& config, const ModelShape& model);

}  // namespace terrace
