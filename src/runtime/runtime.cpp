#include "src/runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "src/base/fail.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Completed by the I/O queue. A read that somebody waits for is no longer fetched ahead: it is demanded.
class TransferEvent : public Event {
 public:
  void started(IoQueue* queue, IoTicket ticket) {
    bool demanded = false;
    {
      const std::lock_guard lock(mutex_);
      queue_ = queue;
      ticket_ = ticket;
      demanded = waited_for_ && !done_;
    }
    if (demanded) queue->promote(ticket);
  }
  void complete(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      error_ = std::move(error);
    }
    changed_.notify_all();
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    const bool promotes = !done_ && !waited_for_ && queue_ != nullptr;
    waited_for_ = true;
    if (promotes) {
      lock.unlock();  // the queue has a lock of its own
      queue_->promote(ticket_);
      lock.lock();
    }
    changed_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  bool waited_for_ = false;
  IoQueue* queue_ = nullptr;  // of a read under way
  IoTicket ticket_ = 0;
  std::exception_ptr error_;
};

std::string words_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    return failure.what();
  } catch (...) {
    return "an unknown failure";
  }
}

bool is_read(OpKind kind) {
  return kind == OpKind::read_state || kind == OpKind::read_param || kind == OpKind::read_gradient ||
         kind == OpKind::read_activation;
}

}  // namespace

Runtime::Runtime(const RuntimeParts& parts, const RuntimeOptions& options)
    : parts_(parts), options_(options) {
  for (auto& stream : streams_) stream = parts_.device->make_stream();
  programs_.resize(kProgramKinds);
  for (int kind = 0; kind < kProgramKinds; ++kind) {
    if (!parts_.plan->has(static_cast<ProgramKind>(kind))) continue;
    programs_[kind] = std::make_unique<ReadyProgram>(parts_.plan->program(static_cast<ProgramKind>(kind)),
                                                     *parts_.arenas, options.adversarial);
  }
  std::size_t blocks = 0;
  for (const Chunk& chunk : parts_.plan->chunks) {
    first_block_.push_back(blocks);
    blocks += chunk.numel / kBlockNumel;
    segment_steps_.emplace_back(chunk.segments.size(), 0);
    auto& frozen = frozen_.emplace_back();
    for (const Segment& segment : chunk.segments) {
      if (parts_.model->units[chunk.unit].tensors[segment.tensor].frozen)
        frozen.push_back({segment.offset, segment.offset + segment.numel()});
    }
  }
  block_sums_.resize(blocks);
  std::size_t tensors = 0;
  for (const UnitShape& unit : parts_.model->units) {
    first_tensor_.push_back(tensors);
    tensors += unit.tensors.size();
  }
  touched_.resize(tensors, 0);
  if (parts_.groups != nullptr && parts_.plan->updates == UpdateTime::backward &&
      parts_.executor->may_leave_untouched()) {
    fail(ErrorCode::unsupported,
         "a step may leave parameters without a gradient, and with several ranks these agree on which with "
         "the verdict: wanted optimizer.clip_norm above 0 (1e30 never clips), got 0");
  }
}

Runtime::~Runtime() = default;

StepOutcome Runtime::run(ProgramKind kind, const StepInputs& inputs) {
  const bool trains = kind == ProgramKind::train || kind == ProgramKind::train_commit;
  check(trains || kind == ProgramKind::drain || !pending_, "a {} program while a step is pending",
        name_of(kind));
  current_ = programs_[static_cast<std::size_t>(kind)].get();
  if (current_ == nullptr && parts_.groups != nullptr) {  // this rank has no part in what the others do
    pending_.reset();
    outcome_ = {};
    outcome_.kind = kind;
    return std::move(outcome_);
  }
  check(current_ != nullptr, "no {} program was compiled", name_of(kind));
  inputs_ = &inputs;
  outcome_ = {};
  outcome_.kind = kind;
  outcome_.ops.resize(current_->program.ops.size());
  current_->slots.reset();
  {
    const std::lock_guard lock(mutex_);
    events_.assign(current_->program.ops.size(), nullptr);
  }
  const std::uint64_t nvme_busy_us = parts_.queue != nullptr ? parts_.queue->stats().busy_us : 0;
  start_ = Clock::now();
  if (options_.adversarial) {
    run_adversarial();
  } else {
    threads_.run([this](Lane lane) {
      try {
        issue(lane);
      } catch (...) {
        stop(std::current_exception());
      }
    });
  }
  if (parts_.queue != nullptr) {
    parts_.queue->drain();  // also after a failure: the arenas are in use until then
    LaneStats& disks = outcome_.lanes[static_cast<std::size_t>(Lane::nvme)];
    LaneStats& states = outcome_.lanes[static_cast<std::size_t>(Lane::store)];
    disks.operations += states.operations;
    disks.bytes += states.bytes;
    states = {};
    disks.busy_us = static_cast<double>(parts_.queue->stats().busy_us - nvme_busy_us);
  }
  outcome_.wall_us = us_since(start_);
  {
    const std::lock_guard lock(mutex_);
    events_.clear();
    if (failure_) std::rethrow_exception(failure_);
  }
  pending_.reset();
  if (!trains) return std::move(outcome_);
  const Verdict& verdict = outcome_.verdict;
  if (verdict.finite) {
    pending_ = Pending{inputs, verdict, touched_};
  } else if (parts_.plan->updates == UpdateTime::backward) {
    fail(
        ErrorCode::invalid_argument,
        "step {}: the gradient is not finite, and without clipping its updates did not wait for that; the "
        "parameters in memory are spoilt, what was committed before is not. With optimizer.clip_norm above 0 "
        "(1e30 never clips) such a step is dropped",
        inputs.step);
  }
  return std::move(outcome_);
}

std::optional<StepOutcome> Runtime::drain() {
  if (pending_ && parts_.plan->has(ProgramKind::drain)) return run(ProgramKind::drain, {});
  pending_.reset();
  return std::nullopt;
}

// The lane's thread: operations in list order, each after what it waits for.
void Runtime::issue(Lane lane) {
  Stream& stream = *streams_[static_cast<std::size_t>(lane)];
  const auto& ops = current_->lanes[static_cast<std::size_t>(lane)];
  for (const OpId id : ops) {
    if (failed_) throw Error(ErrorCode::cancelled, "stopped: another lane failed");
    for (const OpId wait : current_->program.ops[id].waits) stream.wait(event_of(wait));
    if (!completes_in_order(lane)) {
      issue_transfer(id);
    } else {
      stream.launch([this, id] { execute(id); });
      set_event(id, stream.record());
    }
  }
  if (!completes_in_order(lane)) {
    for (const OpId id : ops) event_of(id)->wait();
  } else {
    stream.synchronize();
  }
}

void Runtime::issue_transfer(OpId id) {
  const Op& op = current_->program.ops[id];
  if (op.predicated && !pending_) {
    execute(id);
    auto done = std::make_shared<TransferEvent>();
    done->complete(nullptr);
    set_event(id, std::move(done));
    return;
  }
  if (options_.before_operation) options_.before_operation(parts_.plan->rank, op);
  auto leases = std::make_shared<std::vector<Lease>>(lease_all(op));
  auto event = std::make_shared<TransferEvent>();
  set_event(id, event);
  LaneStats& stats = outcome_.lanes[static_cast<std::size_t>(op.lane)];
  ++stats.operations;
  stats.bytes += op.bytes;
  outcome_.ops[id].start_us = us_since(start_);
  try {
    const IoTicket ticket = start_transfer(op, *leases, [this, event, leases, id](std::exception_ptr error) {
      leases->clear();
      outcome_.ops[id].end_us = us_since(start_);
      if (error) stop(error);
      event->complete(std::move(error));
    });
    if (is_read(op.kind) && ticket != 0) event->started(parts_.queue, ticket);
  } catch (...) {  // it never started: whoever waits for it must not wait for ever
    stop(std::current_exception());
    event->complete(std::current_exception());
    throw;
  }
}

// Everything is issued, nothing runs; then the lanes are waited for in an order drawn from the seed.
// Transfers of a disk lane start in list order but end in any: each is a stream of its own behind the lane's
// gate, which holds the waits so far.
void Runtime::run_adversarial() {
  const StepProgram& program = current_->program;
  std::array<std::unique_ptr<Stream>, kLanes> gates;
  for (auto& gate : gates) gate = parts_.device->make_stream();
  std::vector<std::unique_ptr<Stream>> transfers;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    Stream* stream = streams_[stream_of(op)].get();
    if (!completes_in_order(op.lane)) {
      Stream* gate = gates[static_cast<std::size_t>(op.lane)].get();
      for (const OpId wait : op.waits) gate->wait(event_of(wait));
      transfers.push_back(parts_.device->make_stream());
      stream = transfers.back().get();
      stream->wait(gate->record());
    } else {
      for (const OpId wait : op.waits) stream->wait(event_of(wait));
    }
    stream->launch([this, id] { execute(id); });
    set_event(id, stream->record());
  }
  std::vector<Stream*> order;
  for (auto& stream : streams_) order.push_back(stream.get());
  for (auto transfer = transfers.rbegin(); transfer != transfers.rend(); ++transfer)
    order.push_back(transfer->get());
  std::mt19937_64 random(options_.adversarial_seed);
  if (options_.adversarial_seed != 0) std::shuffle(order.begin(), order.end(), random);
  try {
    if (options_.adversarial_first < program.ops.size() && options_.adversarial_kind == program.kind) {
      event_of(options_.adversarial_first)->wait();
    }
    for (Stream* stream : order) stream->synchronize();
  } catch (...) {
    stop(std::current_exception());
  }
}

EventPtr Runtime::event_of(OpId id) {
  std::unique_lock lock(mutex_);
  issued_.wait(lock, [&] { return failure_ || events_[id]; });
  if (failure_) throw Error(ErrorCode::cancelled, "stopped: another lane failed");
  return events_[id];
}

void Runtime::set_event(OpId id, EventPtr event) {
  {
    const std::lock_guard lock(mutex_);
    events_[id] = std::move(event);
  }
  issued_.notify_all();
}

void Runtime::stop(std::exception_ptr cause) {
  std::exception_ptr first;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(cause);
    failed_ = true;
    first = failure_;
  }
  issued_.notify_all();
  parts_.executor->cancel();
  if (parts_.groups != nullptr) parts_.groups->world->abort(words_of(first));
}

std::vector<Lease> Runtime::lease_all(const Op& op) {
  std::vector<Lease> leases;
  leases.reserve(op.accesses.size());
  for (const Access& access : op.accesses) leases.emplace_back(current_->slots, access);
  return leases;
}

void Runtime::execute(OpId id) {
  if (failed_) throw Error(ErrorCode::cancelled, "stopped: another lane failed");
  const Op& op = current_->program.ops[id];
  std::vector<Lease> leases = lease_all(op);
  if (op.predicated && !pending_) return;
  if (options_.before_operation) options_.before_operation(parts_.plan->rank, op);
  OpTime& time = outcome_.ops[id];
  time.start_us = us_since(start_);
  execute_now(op, leases);
  time.end_us = us_since(start_);
  LaneStats& stats =
      outcome_.lanes[static_cast<std::size_t>(op.lane)];  // one thread at a time writes a lane's
  ++stats.operations;
  stats.bytes += op.bytes;
  stats.flops += op.flops;
  stats.busy_us += time.end_us - time.start_us;
}

}  // namespace terrace
