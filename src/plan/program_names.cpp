#include "src/plan/program.h"

namespace terrace {

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device";
    case Tier::host:
      return "host";
    case Tier::nvme:
      return "nvme";
  }
  return "unknown tier";
}

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::h2d:
      return "h2d";
    case Lane::d2h:
      return "d2h";
    case Lane::collective:
      return "collective";
    case Lane::nvme:
      return "nvme";
    case Lane::optimizer:
      return "optimizer";
    case Lane::store:
      return "store";
    case Lane::commit:
      return "commit";
  }
  return "unknown lane";
}

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::read_state:
      return "read_state";
    case OpKind::write_state:
      return "write_state";
    case OpKind::read_param:
      return "read_param";
    case OpKind::write_param:
      return "write_param";
    case OpKind::read_gradient:
      return "read_gradient";
    case OpKind::write_gradient:
      return "write_gradient";
    case OpKind::read_activation:
      return "read_activation";
    case OpKind::write_activation:
      return "write_activation";
    case OpKind::copy_to_device:
      return "copy_to_device";
    case OpKind::copy_to_host:
      return "copy_to_host";
    case OpKind::all_gather:
      return "all_gather";
    case OpKind::reduce_scatter:
      return "reduce_scatter";
    case OpKind::forward:
      return "forward";
    case OpKind::backward:
      return "backward";
    case OpKind::recompute:
      return "recompute";
    case OpKind::accumulate:
      return "accumulate";
    case OpKind::round_sum:
      return "round_sum";
    case OpKind::sum_group:
      return "sum_group";
    case OpKind::fold:
      return "fold";
    case OpKind::grad_stats:
      return "grad_stats";
    case OpKind::update:
      return "update";
    case OpKind::cast_param:
      return "cast_param";
    case OpKind::visit_state:
      return "visit_state";
    case OpKind::commit:
      return "commit";
  }
  return "unknown operation";
}

std::string_view name_of(Item item) {
  switch (item) {
    case Item::piece:
      return "piece";
    case Item::param_chunk:
      return "param_chunk";
    case Item::contribution:
      return "contribution";
    case Item::grad_chunk:
      return "grad_chunk";
    case Item::grad_sum:
      return "grad_sum";
    case Item::state_chunk:
      return "state_chunk";
    case Item::activation:
      return "activation";
    case Item::activation_grad:
      return "activation_grad";
    case Item::saved:
      return "saved";
    case Item::workspace:
      return "workspace";
    case Item::shared_grad:
      return "shared_grad";
    case Item::received:
      return "received";
    case Item::sum_piece:
      return "sum_piece";
    case Item::accumulator:
      return "accumulator";
    case Item::local_sum:
      return "local_sum";
    case Item::group_sum:
      return "group_sum";
  }
  return "unknown item";
}

std::string_view name_of(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::train:
      return "train";
    case ProgramKind::train_commit:
      return "train_commit";
    case ProgramKind::drain:
      return "drain";
    case ProgramKind::eval:
      return "eval";
    case ProgramKind::materialize:
      return "materialize";
    case ProgramKind::commit:
      return "commit";
    case ProgramKind::visit:
      return "visit";
  }
  return "unknown program";
}

std::string_view name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::each:
      return "each";
    case Reduction::last:
      return "last";
    case Reduction::grouped:
      return "grouped";
    case Reduction::hierarchical:
      return "hierarchical";
  }
  return "unknown reduction";
}

}  // namespace terrace
