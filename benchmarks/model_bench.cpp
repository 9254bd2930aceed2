// The executor alone at GPT-2 small's shape (12 blocks, width 768, vocabulary 50304, untied, 4 samples of 256
// tokens, bf16): forward and backward of one contribution, without recomputation, optimizer or tiers.
#include <benchmark/benchmark.h>

#include "src/base/random.h"
#include "tests/model/model_runner.h"

namespace terrace {
namespace {

ModelSpec gpt2_small() {
  ModelSpec spec;
  spec.vocabulary = 50304;
  spec.tied_head = false;
  return spec;
}

constexpr std::uint32_t kSamples = 4;

void set_batch(GptExecutor& executor, const ModelSpec& spec) {
  std::vector<std::uint32_t> tokens(std::size_t{kSamples} * spec.context);
  std::vector<std::int32_t> targets(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::uint32_t>(random_bits(1, 2, i, 0) % spec.vocabulary);
    targets[i] = static_cast<std::int32_t>(random_bits(1, 3, i, 0) % spec.vocabulary);
  }
  executor.set_contribution(0, tokens, targets);
  executor.set_divisor(targets.size());
}

double unit_flops(const UnitShape& unit, bool head) {
  return head ? unit.forward_flops + unit.backward_flops : unit.backward_flops;
}

void report(benchmark::State& state, double flops, const ModelSpec& spec) {
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(kSamples) * spec.context,
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

void contribution(benchmark::State& state, DType dtype) {
  const ModelSpec spec = gpt2_small();
  testing::ModelRunner runner(spec, kSamples, dtype, dtype);
  set_batch(runner.executor(), spec);
  double flops = 0;
  for (const UnitShape& unit : runner.shape().units) flops += unit.forward_flops + unit.backward_flops;
  runner.train();
  for (auto _ : state) benchmark::DoNotOptimize(runner.train());
  report(state, flops, spec);
  state.counters["library_MB"] = static_cast<double>(runner.executor().library_bytes()) * 1e-6;
}

// One unit's operation, after one whole contribution has filled its operands.
void unit_operation(benchmark::State& state, OpKind kind, bool head) {
  ModelSpec spec = gpt2_small();
  spec.layers = 1;
  testing::ModelRunner runner(spec, kSamples, DType::bf16, DType::bf16);
  set_batch(runner.executor(), spec);
  runner.train();
  const std::uint32_t unit = head ? spec.head_unit() : 1;
  for (auto _ : state) runner.run(kind, unit);
  const UnitShape& shape = runner.shape().units[unit];
  report(state, kind == OpKind::backward ? unit_flops(shape, head) : shape.forward_flops, spec);
}

BENCHMARK_CAPTURE(contribution, bf16, DType::bf16)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(3);
BENCHMARK_CAPTURE(contribution, fp32, DType::f32)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(unit_operation, block_forward, OpKind::forward, false)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(unit_operation, block_recompute, OpKind::recompute, false)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(unit_operation, block_backward, OpKind::backward, false)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(unit_operation, head_forward, OpKind::forward, true)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(unit_operation, head_backward, OpKind::backward, true)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace terrace

BENCHMARK_MAIN();
