// The training loop: the spine. Read it first.
#include "terrace/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/collectives/mpi_communicator.h"
#include "src/engine/commit_policy.h"
#include "src/train/batches.h"
#include "src/train/compare_ranks.h"
#include "src/train/metrics.h"
#include "src/train/process_settings.h"
#include "src/train/rank_report.h"
#include "src/train/report.h"
#include "src/train/session.h"
#include "src/train/trace.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One run: what lives from the first step to the last.
class Training {
 public:
  Training(const Config& config, const TrainOptions& options, const SessionOptions& session)
      : config_(config),
        options_(options),
        tokens_(checked_tokens()),
        validation_(validation_tokens()),
        sampler_(tokens_, train_samples(config)),
        session_(config, with_settings(session), options.compare_ranks),
        commits_(config, session_.plan()),
        schedule_(schedule_of(config)),
        loss_scale_(loss_scale_of(config)),
        totals_(session_.model(), session_.plan(), session_.engine().memory(),
                session_.engine().ledger_bytes()),
        ranks_(session_.engine().ranks()) {
    if (session_.resumed()) {
      step_ = committed_ = session_.resumed()->step;
      sampler_.restore_state(session_.resumed()->sampler);
      last_line_ = session_.resumed()->step_line;
      updates_ = session_.resumed()->updates;
      if (!session_.resumed()->loss_scale.empty()) loss_scale_.restore(session_.resumed()->loss_scale);
    }
    save_run_state();
    if (!options.trace_path.empty()) {
      trace_ = std::make_unique<TraceWriter>(options.trace_path, session_.model(), session_.plan());
    }
    if (!options.metrics_path.empty()) {
      metrics_ = std::make_unique<MetricsWriter>(
          options.metrics_path, options.resume ? std::optional<std::uint64_t>(step_) : std::nullopt,
          session_.resumed() ? session_.resumed()->step_line : "");
    }
  }

  TrainResult run() {
    TrainResult result;
    result.last_loss = result.eval_loss = std::numeric_limits<double>::quiet_NaN();
    const std::uint64_t first = step_;
    const auto start = Clock::now();
    if (session_.resumed() && evaluation_due())
      result.eval_loss = evaluate();  // a kill may have come before it
    while (step_ < config_.train.steps) {
      const double left = static_cast<double>(config_.train.steps - step_ - 1);
      StepReport report = train_step();
      report.eta_s = seconds_since(start) / static_cast<double>(step_ - first) * left;
      result.last_loss = report.loss;
      if (options_.on_step) options_.on_step(report);
      // A signal may reach one process first: all stop after the same step.
      const bool asked = options_.should_stop && options_.should_stop();
      result.interrupted = session_.engine().largest_of_processes(asked ? 1 : 0) > 0;
      if (evaluation_due() && (!result.interrupted || step_ == config_.train.steps)) {
        result.eval_loss = evaluate();
      }
      if (result.interrupted) break;
    }
    settle();
    if (commits_.enabled()) commit();
    ProbeRoom room = probe_room(config_, session_.plan());
    room.idle = session_.engine().host_memory();
    totals_.finish(room);  // in the same minute as the steps
    result.steps = step_;
    const std::string compared = compare(result);  // first: ranks that differ have no common state
    result.state_hash = session_.engine().state_hash();
    result.report = totals_.text(session_.engine().locked_bytes()) + ranks_.text(sampler_, session_.model());
    result.report += compared;
    if (metrics_)
      metrics_->end({result.state_hash, step_, totals_.peak_bytes(session_.engine().locked_bytes()),
                     totals_.step_over_bound()});
    write_trace();
    return result;
  }

 private:
  std::string compare(TrainResult& result) {
    if (!options_.compare_ranks) return "";
    const RankDifferences differences = compare_ranks(session_);
    result.rank_differences = differences.largest;
    const bool same = std::ranges::all_of(differences.largest, [](double largest) { return largest == 0; });
    if (!same) logger()->error("the ranks' parameters differ:\n{}", to_text(differences));
    return to_text(differences);
  }

  // Last: a trace that cannot be written costs nothing else.
  void write_trace() const {
    if (!trace_) return;
    try {
      trace_->write();
    } catch (const Error& error) {
      logger()->error("{}", error.what());
    }
  }

  // What the user may have got wrong is looked at before a store is made.
  TokenFile checked_tokens() const {
    if (config_.data.path.empty()) {
      fail(ErrorCode::invalid_argument,
           "data.path is not set; wanted the folder that `terrace data prepare` wrote");
    }
    TokenFile tokens(config_.data.path + "/" + kTrainTokensName);
    require_vocabulary(tokens, config_.model.vocabulary);
    if (!options_.metrics_path.empty()) require_writable_metrics(options_.metrics_path);
    if (!options_.trace_path.empty()) require_writable_trace(options_.trace_path);
    std::error_code unknown;
    if (!options_.trace_path.empty() &&
        (options_.trace_path == options_.metrics_path ||
         std::filesystem::equivalent(options_.trace_path, options_.metrics_path, unknown))) {
      fail(ErrorCode::invalid_argument, "{}: metrics and trace want a file each", options_.trace_path);
    }
    return tokens;
  }

  // Null where there is no validation split.
  std::unique_ptr<TokenFile> validation_tokens() const {
    const std::string path = config_.data.path + "/" + kValidationTokensName;
    if (!std::filesystem::exists(path)) return nullptr;
    auto tokens = std::make_unique<TokenFile>(path);
    require_vocabulary(*tokens, config_.model.vocabulary);
    DistributedSampler(*tokens, validation_samples(config_));  // long enough for a sample
    return tokens;
  }

  SessionOptions with_settings(SessionOptions session) const {
    session.process_settings = process_settings(config_, options_, tokens_, validation_.get());
    return session;
  }

  bool evaluation_due() const {
    return step_ == config_.train.steps ||
           (config_.train.eval_every > 0 && step_ > 0 && step_ % config_.train.eval_every == 0);
  }

  // What a commit of the last step would keep: sampler and metrics as they are now.
  void save_run_state() {
    saved_ = {step_, to_json({step_, last_line_, sampler_.save_state(), loss_scale_.save(), updates_})};
  }

  // One step. Its updates, or their writes, are left pending and run inside the next; so does its commit.
  StepReport train_step() {
    const auto start = Clock::now();
    const std::uint64_t targets = session_.load_step(sampler_);
    tokens_.require_unchanged();
    if (targets == 0) return skip_step();
    const double lr = schedule_.at(updates_);
    const bool commit = commits_.due(step_) && committed_ != step_;
    StepInputs inputs;
    inputs.step = step_ + 1;
    inputs.groups = groups_at(config_, lr);
    inputs.clip_norm = config_.optimizer.clip_norm;
    inputs.loss_scale = loss_scale_.scale();
    session_.set_loss_scale(inputs.loss_scale);
    if (commit) inputs.commit = saved_;
    ranks_.take(sampler_);
    const CommunicatorStats::Traffic before = session_.engine().sent();
    const StepOutcome outcome =
        session_.engine().run(commit ? ProgramKind::train_commit : ProgramKind::train, inputs);
    if (commit) committed_ = step_;
    sampler_.advance();
    ++step_;
    if (outcome.verdict.finite) ++updates_;
    const LossScaleChange change = loss_scale_.update(outcome.verdict.finite);
    if (change != LossScaleChange::none) {
      logger()->info("step {}: loss scale {} to {}", step_,
                     change == LossScaleChange::raised ? "raised" : "lowered", loss_scale_.scale());
    }
    const auto wall_us = static_cast<std::uint64_t>(outcome.wall_us);
    commits_.measure(static_cast<double>(session_.engine().largest_of_processes(wall_us)));
    totals_.add(outcome);
    if (trace_) trace_->add(step_, outcome);

    StepReport report;
    report.step = step_;
    report.total_steps = config_.train.steps;
    const std::vector<double> loss_sums = session_.loss_sums();
    report.loss = mean_loss(loss_sums, targets);
    report.rank_losses = session_.rank_losses(loss_sums);
    report.grad_norm = outcome.verdict.norm;
    report.lr = lr;
    report.dropped = !outcome.verdict.finite;
    report.tokens_per_s = static_cast<double>(targets) / seconds_since(start);
    ranks_.add(report, session_.rank_targets(), before, session_.engine().sent());
    last_line_ = to_line(to_metrics(report, outcome));
    save_run_state();
    if (report.dropped) {
      logger()->warn("step {}: the gradient is not finite (loss {}); nothing was updated", step_,
                     report.loss);
    }
    if (metrics_) metrics_->step(to_metrics(report, outcome));
    return report;
  }

  // All targets of the step are padding. What the step before left pending stays so.
  StepReport skip_step() {
    sampler_.advance();
    ++step_;
    logger()->warn("step {}: none of its targets counts; it is skipped", step_);
    StepReport report;
    report.step = step_;
    report.total_steps = config_.train.steps;
    report.loss = std::numeric_limits<double>::quiet_NaN();
    report.lr = schedule_.at(updates_);
    report.skipped = true;
    last_line_ = to_line(to_metrics(report));
    save_run_state();
    if (metrics_) metrics_->step(to_metrics(report));
    return report;
  }

  // Mean over the first windows of the validation split, in file order; NaN where there is none or none is
  // wanted.
  double evaluate() {
    if (!validation_ || config_.train.eval_batches == 0) return std::numeric_limits<double>::quiet_NaN();
    settle();
    DistributedSampler sampler(*validation_, validation_samples(config_));
    const std::uint64_t batches = std::clamp<std::uint64_t>(sampler.windows() / config_.train.micro_batch, 1,
                                                            config_.train.eval_batches);
    const double loss = session_.evaluate(sampler, batches);
    validation_->require_unchanged();
    if (metrics_) metrics_->eval(step_, loss);
    if (options_.on_eval) options_.on_eval({step_, loss});
    return loss;
  }

  // Does what is pending, and commits where that is due: the next step finds nothing to do for this one.
  void settle() {
    if (const auto outcome = session_.engine().drain()) totals_.add(*outcome);
    if (commits_.due(step_)) commit();
  }

  void commit() {
    if (committed_ == step_) return;
    StepInputs inputs;
    inputs.commit = saved_;
    totals_.add(session_.engine().run(ProgramKind::commit, inputs));
    committed_ = step_;
  }

  const Config& config_;
  const TrainOptions& options_;
  TokenFile tokens_;
  std::unique_ptr<TokenFile> validation_;
  DistributedSampler sampler_;
  Session session_;
  CommitPolicy commits_;
  LearningRateSchedule schedule_;
  LossScale loss_scale_;
  std::unique_ptr<MetricsWriter> metrics_;
  RunTotals totals_;
  RankReport ranks_;
  std::unique_ptr<TraceWriter> trace_;
  std::string last_line_;      // metrics of the last step
  CommitInputs saved_;         // run state after it
  std::uint64_t step_ = 0;     // iterations done
  std::uint64_t updates_ = 0;  // those that updated
  std::uint64_t committed_ = 0;
};

// As one rank of a job of processes.
TrainResult train_as_process(Config config, TrainOptions options, SessionOptions session) {
  try {
    auto world = make_mpi_world(communicator_options(config));
    const auto size = static_cast<std::uint32_t>(world->size());
    if (config.ranks.count != 1 && config.ranks.count != size) {
      fail(ErrorCode::invalid_argument, "ranks.count = {}, and the job has {} processes of one rank each",
           config.ranks.count, size);
    }
    config.ranks.count = size;
    const bool first = world->rank() == 0;
    if (!first) {  // one process speaks
      options.metrics_path.clear();
      options.trace_path.clear();
      options.on_step = nullptr;
      options.on_eval = nullptr;
      logger()->set_level(spdlog::level::err);
    }
    session.make_world = [&](const CommunicatorOptions&) { return std::move(world); };
    TrainResult result = train(config, options, session);
    result.first_process = first;
    return result;
  } catch (const std::exception& error) {
    abort_mpi_job(error.what());
  }
}

}  // namespace

TrainResult train(const Config& config, const TrainOptions& options) {
  SessionOptions session;
  session.resume = options.resume;
  const bool launched = launched_by_mpi();
  if (launched && config.ranks.per_process == 1) return train_as_process(config, options, session);
  if (launched) {
    fail(ErrorCode::invalid_argument,
         "started as one of a job's processes, but ranks.per_process = 0: each would be a run of its own. "
         "With "
         "--ranks-per-process 1 they are the ranks of one run");
  }
  if (config.ranks.per_process == 1 && config.ranks.count > 1) {
    fail(ErrorCode::invalid_argument, "ranks.per_process = 1 with ranks.count = {}: start it by mpirun -n {}",
         config.ranks.count, config.ranks.count);
  }
  return train(config, options, session);
}

TrainResult train(const Config& config, const TrainOptions& options, const SessionOptions& session) {
  SessionOptions given = session;
  given.on_stuck = options.on_stuck;
  return Training(config, options, given).run();
}

}  // namespace terrace
