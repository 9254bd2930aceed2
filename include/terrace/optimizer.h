// AdamW over parameters and gradients that another program owns. The states live in Terrace's tiers; the
// updates of a step run behind the next step's forward. docs/embedding.md is the guide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/config.h"
#include "terrace/error.h"

namespace terrace {

enum class ElementType : std::uint8_t { fp32, bf16, fp16 };

struct OptimizerTensor {
  std::string name;                                // unique, UTF-8
  std::uint64_t numel = 0;                         // at least 1
  void* parameters = nullptr;                      // numel elements, end to end; see Optimizer for who writes
  ElementType parameter_type = ElementType::fp32;  // fp32 or bf16
  ElementType gradient_type = ElementType::fp32;   // of what gradient_ready is given
  std::uint32_t group = 0;                         // index into OptimizerStep::groups
};

enum class StoreUse : std::uint8_t {
  create,           // a store that exists is refused
  resume,           // a store that does not exist is refused
  create_or_resume  // whichever it is
};

// Hyperparameters of one parameter group at one step.
struct AdamWGroup {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // decoupled: the parameter loses lr * weight_decay of itself
};

// What a step is ended with.
struct OptimizerStep {
  std::vector<AdamWGroup> groups;  // one for each group that a tensor names
  double loss_scale = 1;           // what the gradients are larger by
  // Kept with a commit of this step and handed back on resume, at most 1 MiB: where the program's data
  // stands, ...
  std::string program_state = {};
};

struct OptimizerVerdict {
  std::uint64_t step = 0;  // steps ended, this one and those of earlier runs included
  double grad_norm =
      0;  // of the whole gradient, without the loss scale, before clipping; infinite when dropped
  bool dropped = false;  // the gradient was not finite: nothing is updated
};

// Registered parameters belong to the program, which reads them once wait_for_parameters has said that they
// are there; while an Optimizer exists it alone writes them. Gradients belong to the program too: what
// gradient_ready was given is read until the contribution has ended.
//
// Tensors are named by their index in the list given to the constructor. Of `Config` these count: tiers,
// placement (without activations), store, commit, io, compute, optimizer.clip_norm, train.micro_batches,
// precision.grad.
//
// Thread contract: gradient_ready and wait_for_parameters from any thread, several at once; the others from
// one thread at a time, not while another call runs. Errors are terrace::Error. One that names a wrong
// argument or a call out of turn changes nothing. One of the work behind (a disk that fails or is full) comes
// from the next call that is made or is waiting, and from every call after it; then only the destructor is of
// use.
class Optimizer {
 public:
  // Plans, allocates, creates the store and writes every parameter's initial value to it, or opens it at its
  // last commit. The tensors' names, sizes and order must be those of the store; a store in which nothing was
  // committed begins with the parameters in memory. Throws does_not_fit with a ledger where a budget is too
  // small. Cost: one pass over the states.
  Optimizer(const Config& config, std::vector<OptimizerTensor> tensors,
            StoreUse use = StoreUse::create_or_resume);
  // Ends what is under way and keeps nothing beyond the last commit. The parameters in memory may then be of
  // two steps.
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // The index of a name; throws not_found.
  std::size_t tensor(std::string_view name) const;
  // Steps ended, those of earlier runs included.
  std::uint64_t steps() const;
  // program_state of the step that was resumed; empty in a new store.
  const std::string& program_state() const;
  // What is held on each tier, line by line.
  std::string ledger() const;

  // Blocks until the newest step's parameters of the tensor (of all) are in the program's memory. First
  // needed before the first forward, last after the last step.
  void wait_for_parameters(std::size_t tensor);
  void wait_for_parameters();

  // The tensor's gradient of this contribution is complete at `gradient` (numel elements of its
  // gradient_type, which `type` must be) and stays there, unchanged, until end_contribution or step has
  // returned. Any order, once a tensor and contribution; a tensor left out did not take part. Does not block.
  void gradient_ready(std::size_t tensor, const void* gradient, ElementType type);

  // Ends a contribution that is not the last of train.micro_batches. Blocks until its gradients have been
  // read.
  void end_contribution();

  // Optional, before or among the step's gradients: what step() will be ended with. Without clipping
  // (clip_norm = 0) updates then begin while gradients still come.
  void announce_step(const OptimizerStep& step);

  // Ends the step; contributions not ended yet are ended with what was signalled. Blocks until all gradients
  // have been read and the verdict is known; the updates are left to run behind what follows. A tensor that
  // no contribution reached keeps parameters, state and step count. Without clipping a gradient that is not
  // finite is an error.
  OptimizerVerdict step(const OptimizerStep& step);
  OptimizerVerdict step();  // as announced

  // Commits the newest step, between steps (throws invalid_argument after a gradient_ready). Blocks. Cheapest
  // directly after step(): once the parameters have been waited for, the step that they belong to is begun
  // and must be undone.
  void save();

  // 32 hexadecimal digits over every master parameter, state and step count, for comparisons. Between steps;
  // reads all.
  std::string state_hash();

 private:
  std::unique_ptr<class OptimizerBackend> backend_;
};

}  // namespace terrace
