// Where an embedding program and the compute lane meet: forward of a unit hands its parameters to the
// program, backward takes the gradients that the program has signalled.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "src/embed/tensor_table.h"
#include "src/runtime/executor.h"

namespace terrace {

// A train program runs between begin() and end(). Forward never waits. Backward of a unit waits for all of
// its tensors or for the end of the contribution; that of unit 0 in the last contribution for the end of the
// step, so that no program ends before its step, or is skipped.
//
// Thread contract: run, touched: the runtime's lanes. gradient_ready, wait_for_unit, cancel: any thread.
// begin, announce, end_contribution, end_step, skip: one thread at a time. end: the thread that ran the
// program.
class ExternalExecutor final : public Executor {
 public:
  // `tensors` must outlive this. `stale`: the program's memory does not hold the engine's parameters yet.
  ExternalExecutor(const TensorTable& tensors, const ModelShape& model, std::uint32_t contributions,
                   UpdateTime updates, bool stale);

  void run(const ComputeCall& call) override;
  bool touched(std::uint32_t unit, std::uint32_t tensor) const override;
  bool may_leave_untouched() const override { return true; }
  void cancel() override;  // run() throws from now on

  void begin();
  void gradient_ready(std::size_t tensor, const void* gradient);
  void announce();  // the step's hyperparameters are there
  // Returns when the contribution's gradients have been read, or the program has ended.
  void end_contribution();
  void end_step();
  void skip();  // the program of a step that is not made: reads nothing, touches nothing and is dropped
  // `applied`: the step's updates will be, or have been, made.
  void end(bool applied);

  // Returns when the unit's parameters have been handed over, or the program has ended.
  void wait_for_unit(std::uint32_t unit);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void forward(const ComputeCall& call);
  void backward(const ComputeCall& call);
  bool may_read(const Lock&, std::uint32_t unit, std::uint32_t contribution) const;
  std::vector<const std::byte*> gradients_of(std::uint32_t unit, std::uint32_t contribution);
  void open_contribution(const Lock&, std::uint32_t contribution);

  const TensorTable& tensors_;
  const std::uint32_t contributions_;
  const UpdateTime updates_;
  const DType param_dtype_;
  const DType grad_dtype_;

  // By unit and part. The compute lane's while a program runs; touched_ is read by the optimizer lane too.
  std::vector<std::vector<std::uint8_t>> stale_;
  std::vector<std::vector<std::uint8_t>> touched_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool running_ = false;
  bool cancelled_ = false;
  bool skipped_ = false;
  bool announced_ = false;
  std::uint32_t delivered_ = 0;                       // units handed over
  std::uint32_t read_ = 0;                            // contributions read whole
  std::uint32_t closed_ = 0;                          // contributions ended by the program
  std::uint32_t open_ = 0;                            // the contribution that gradients_ is of
  std::vector<const void*> gradients_;                // by tensor; null: not signalled
  std::vector<std::uint32_t> missing_;                // by unit: parts not signalled
  std::vector<std::vector<std::uint32_t>> units_of_;  // by tensor; constant
};

}  // namespace terrace
