#include "src/collectives/mpi_communicator.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "src/base/fail.h"
#include "src/collectives/collective_call.h"
#include "src/collectives/mpi_exchange.h"
#include "src/collectives/mpi_world.h"

namespace terrace {
namespace {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorld> world, MpiGroup group, int rank)
      : Communicator(group.name, group.world_ranks, rank),
        world_(std::move(world)),
        group_(std::move(group)),
        exchange_(*world_, group_, rank),
        exceptions_(std::uncaught_exceptions()) {
    world_->add(group_);
  }

  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_) abort("an exception that took its communicator away");
    world_->remove(group_);
  }

  void abort(std::string_view cause) noexcept override { world_->abort(cause); }

 private:
  void run(CollectiveCall& call) override {
    exchange_.prepare(call);
    const ControlMessage opening = world_->enter(group_, call);
    const MpiEngine::Clock::time_point opened = MpiEngine::Clock::now();
    try {
      exchange_.run(call, opening.present);
    } catch (const std::exception& error) {  // no memory or no threads, with transfers on their way
      abort_mpi_job(fmt::format("{}: {}", world_->place(group_, call), error.what()));
    }
    world_->leave(group_, opened,
                  std::max(sent_bytes(call, rank(), size()), received_bytes(call, rank(), size())));
  }

  std::unique_ptr<Communicator> make_group(CollectiveCall& call) override {
    const ControlMessage opening = world_->enter(group_, call);
    world_->leave(group_, {}, 0);
    if (opening.made == 0) return nullptr;
    MpiGroup made{.number = opening.made, .name = std::string(call.name), .world_ranks = {}};
    for (const int member : call.ranks)
      made.world_ranks.push_back(world_ranks()[static_cast<std::size_t>(member)]);
    const auto place = std::ranges::find(call.ranks, rank()) - call.ranks.begin();
    return std::make_unique<MpiCommunicator>(world_, std::move(made), static_cast<int>(place));
  }

  const std::shared_ptr<MpiWorld> world_;
  MpiGroup group_;
  MpiExchange exchange_;
  const int exceptions_;  // in flight when this handle was made
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(const CommunicatorOptions& options) {
  if (options.time_limit.count() <= 0 || options.time_limit > std::chrono::hours(24)) {
    fail(ErrorCode::invalid_argument, "world: wanted a time limit of 1 ms to 1 day, got {} ms",
         options.time_limit.count());
  }
  if (!(options.link_gbps >= 0)) {
    fail(ErrorCode::invalid_argument, "world: wanted a link of 0 GB/s or more, got {}", options.link_gbps);
  }
  MpiEngine& engine = MpiEngine::start(options.time_limit);
  std::vector<int> ranks(static_cast<std::size_t>(engine.processes()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<MpiCommunicator>(
      std::make_shared<MpiWorld>(engine, options),
      MpiGroup{.number = 0, .name = "world", .world_ranks = std::move(ranks)}, engine.process());
}

}  // namespace terrace
