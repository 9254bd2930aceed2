#include "src/train/setup.h"

#include "src/base/fail.h"
#include "src/config/loss_scale_setting.h"
#include "src/model/describe.h"

namespace terrace {
namespace {

DType dtype_of(const std::string& name) {
  if (name == "bf16") return DType::bf16;
  if (name == "fp16") return DType::f16;
  if (name == "fp32") return DType::f32;
  fail(ErrorCode::unsupported, "precision '{}' is not supported; wanted bf16, fp16 or fp32", name);
}

}  // namespace

ModelSpec model_spec(const Config& config) {
  ModelSpec spec;
  const Config::Model& model = config.model;
  spec.layers = model.layers;
  spec.width = model.width;
  spec.heads = model.heads;
  spec.kv_heads = model.kv_heads;
  spec.mlp_width = model.mlp_width;
  spec.vocabulary = model.vocabulary;
  spec.context = model.context;
  spec.tied_head = model.tied_head;
  spec.norm = model.norm;
  spec.position = model.position;
  spec.mlp = model.mlp;
  spec.init_std = model.init_std;
  return spec;
}

DType compute_dtype(const Config& config) {
  return dtype_of(config.precision.compute);
}

DType grad_dtype(const Config& config) {
  return config.precision.grad == "auto" ? compute_dtype(config) : dtype_of(config.precision.grad);
}

ModelShape model_shape(const Config& config) {
  ModelShape model =
      describe(model_spec(config), config.train.micro_batch, compute_dtype(config), grad_dtype(config));
  assign_parameter_groups(config, model);
  return model;
}

PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_nvme_bytes) {
  return plan_request(config, model, chunk_numel, free_nvme_bytes, host_overhead(config, model, chunk_numel));
}

LossScale loss_scale_of(const Config& config) {
  const LossScaleSetting setting = loss_scale_setting(config);
  LossScaleOptions options;
  options.dynamic = setting.dynamic;
  options.fixed = setting.fixed;
  options.initial = config.precision.loss_scale_initial;
  options.window = config.precision.loss_scale_window;
  options.hysteresis = config.precision.loss_scale_hysteresis;
  options.minimum = config.precision.loss_scale_minimum;
  return LossScale(options);
}

std::uint64_t effective_batch(const Config& config) {
  return std::uint64_t{config.train.micro_batch} * config.train.micro_batches;
}

LearningRateSchedule schedule_of(const Config& config) {
  LearningRateSchedule schedule;
  schedule.kind = parse_schedule_kind(config.optimizer.schedule);
  schedule.lr = scaled_lr(config.optimizer.lr, effective_batch(config), config.train.lr_reference_batch,
                          parse_lr_scaling(config.train.lr_scaling));
  schedule.warmup_steps = config.optimizer.warmup_steps;
  schedule.total_steps = config.train.steps;
  schedule.min_ratio = config.optimizer.min_lr_ratio;
  return schedule;
}

}  // namespace terrace
