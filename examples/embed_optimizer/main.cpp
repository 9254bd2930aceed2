// Fits a line through noisy points, many at once, by AdamW whose states lie on disk. Run it again: it goes on
// where it stopped. Usage: embed_optimizer [FOLDER]
#include <terrace/optimizer.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "embed_optimizer_store";
  std::filesystem::create_directories(folder + "/nvme");
  terrace::Config config;
  config.store.path = folder + "/store";
  config.tiers.nvme = {{folder + "/nvme", 64 << 20}};
  config.tiers.device_bytes = 16 << 20;
  config.tiers.host_bytes = 256 << 20;
  config.placement.optimizer_state = {false, 0, 0, 1};  // device, host, nvme: all of it on disk
  config.placement.chunk_numel = 65536;

  // y = slope * x + offset for 100,000 lines, each seen through three points.
  constexpr std::size_t kLines = 100'000;
  std::vector<float> slope(kLines), offset(kLines), slope_gradient(kLines), offset_gradient(kLines);
  terrace::Optimizer optimizer(config, {{"slope", kLines, slope.data()}, {"offset", kLines, offset.data()}});
  std::printf("begins after step %llu\n", static_cast<unsigned long long>(optimizer.steps()));
  for (int i = 0; i < 30; ++i) {
    optimizer.wait_for_parameters();
    double loss = 0;
    for (std::size_t line = 0; line < kLines; ++line) {
      slope_gradient[line] = offset_gradient[line] = 0;
      for (const float x : {-1.0f, 0.5f, 2.0f}) {
        const float error =
            slope[line] * x + offset[line] - (std::sin(0.01f * line) * x + std::cos(0.02f * line));
        slope_gradient[line] += error * x / kLines;
        offset_gradient[line] += error / kLines;
        loss += 0.5 * error * error / kLines;
      }
    }
    optimizer.gradient_ready(1, offset_gradient.data(), terrace::ElementType::fp32);
    optimizer.gradient_ready(0, slope_gradient.data(), terrace::ElementType::fp32);
    const auto verdict = optimizer.step({.groups = {{.lr = 0.02, .weight_decay = 0.0}}});
    if (i % 10 == 0 || i == 29)
      std::printf("step %llu loss %.6f\n", static_cast<unsigned long long>(verdict.step), loss);
  }
  optimizer.save();
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
