#include "tests/e2e/tiny_run.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "src/train/setup.h"
#include "terrace/data.h"

namespace terrace::e2e {

Workspace::Workspace() {
  std::ofstream text(path() + "/text");
  // Words in an order that a model can learn a little of.
  static constexpr const char* kWords[] = {"the ",    "river ", "runs ",   "over ",
                                           "stones ", "and ",   "sleeps ", "below.\n"};
  unsigned state = 12345;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525u + 1013904223u;
    text << kWords[(state >> 24) % 3 == 0 ? (state >> 16) % 8 : static_cast<unsigned>(i) % 8];
  }
  text.close();
  prepare_data({path() + "/text"}, path() + "/data", {});
}

Config Workspace::config() const {
  Config config;
  config.model.layers = 3;
  config.model.width = 64;
  config.model.heads = 2;
  config.model.context = 32;
  config.data.path = path() + "/data";
  config.train.steps = 4;
  config.train.micro_batch = 6;
  config.train.eval_batches = 1;
  config.optimizer.lr = 3e-3;
  config.optimizer.warmup_steps = 2;
  config.tiers.device_bytes = 64u << 20;
  config.tiers.host_bytes = 1u << 30;  // many cores bring memory of their own
  config.placement.chunk_numel = 16384;
  config.compute.adversarial = std::getenv("TERRACE_TEST_ADVERSARIAL") != nullptr;
  return config;
}

Config Workspace::config_on_disk() {
  Config config = this->config();
  const std::string folder = path() + "/" + std::to_string(stores_++);
  std::filesystem::create_directories(folder + "/nvme");
  config.store.path = folder + "/store";
  config.tiers.nvme = {{folder + "/nvme", 128u << 20}};
  return config;
}

std::ostream& operator<<(std::ostream& out, const Record& record) {
  out.precision(17);
  for (std::size_t i = 0; i < record.losses.size(); ++i)
    out << record.losses[i] << "/" << record.norms[i] << " ";
  return out << record.eval_loss << " " << record.hash;
}

Record run(const Config& config, bool resume) {
  Record record;
  TrainOptions options;
  options.resume = resume;
  options.on_step = [&](const StepReport& report) {
    record.losses.push_back(report.loss);
    record.norms.push_back(report.grad_norm);
  };
  const TrainResult result = train(config, options);
  record.eval_loss = result.eval_loss;
  record.hash = result.state_hash;
  return record;
}

Config with_least_budgets(Config config) {
  const ModelShape model = model_shape(config);
  config.tiers.device_bytes = config.tiers.host_bytes = 1;
  const Plan plan = make_plan(plan_request(config, model, config.placement.chunk_numel, 0));
  config.tiers.device_bytes = plan.least_bytes[0];
  config.tiers.host_bytes = plan.least_bytes[1];
  return config;
}

PlacementShares only(const std::string& tier) {
  return shares(tier == "device" ? 1 : 0, tier == "host" ? 1 : 0, tier == "nvme" ? 1 : 0);
}

PlacementShares shares(double device, double host, double nvme) {
  return {false, device, host, nvme};
}

void place_all(Config& config, const PlacementShares& where) {
  config.placement.parameters = config.placement.gradients = where;
  config.placement.optimizer_state = config.placement.activations = where;
}

}  // namespace terrace::e2e
