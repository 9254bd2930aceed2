// What the optimizer holds stays within its ledger.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/process_memory.h"
#include "tests/embed/host_program.h"

namespace terrace::embed_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // memory is another allocator's
#else
constexpr bool kSanitized = false;
#endif

TEST(EmbedMemoryTest, StaysWithinTheLedger) {
  std::vector<TensorSpec> specs(2000, TensorSpec{33});
  specs.insert(specs.end(), 12, TensorSpec{1'000'003});
  HostProgram program(specs);
  std::vector<std::vector<float>> gradients;
  for (const TensorSpec& spec : specs) gradients.emplace_back(spec.numel, 0.01f);
  for (const double share : {0.0, 1.0}) {
    const TempDir folder;
    Config config = disk_config(folder.path(), 1, 1, share);
    config.tiers.nvme[0].size_bytes = 1u << 30;
    config.tiers.device_bytes = 1u << 30;
    config.placement.chunk_numel = 1u << 18;
    const std::uint64_t before_bytes = process_memory().resident_bytes();
    OptimizerBackend optimizer(config, program.registration(), {});
    std::uint64_t most_bytes = 0;
    for (int step = 0; step < 4; ++step) {
      optimizer.wait_for_parameters();
      for (std::size_t t = 0; t < specs.size(); ++t)
        optimizer.gradient_ready(t, gradients[t].data(), ElementType::fp32);
      optimizer.step(HostProgram::hyper(1));
      most_bytes = std::max(most_bytes, process_memory().resident_bytes());
    }
    const std::uint64_t held_bytes = most_bytes - std::min(most_bytes, before_bytes);
    const std::uint64_t ledger_bytes = optimizer.engine().ledger_bytes();
    RecordProperty("held_bytes", std::to_string(held_bytes));
    RecordProperty("ledger_bytes", std::to_string(ledger_bytes));
    EXPECT_TRUE(kSanitized || held_bytes <= ledger_bytes + ledger_bytes / 100)
        << held_bytes << " bytes are held, " << ledger_bytes << " promised\n"
        << to_text(optimizer.plan().ledger);
    EXPECT_TRUE(kSanitized || held_bytes > ledger_bytes / 2) << "the ledger promises much more than is held";
  }
}

}  // namespace
}  // namespace terrace::embed_test
