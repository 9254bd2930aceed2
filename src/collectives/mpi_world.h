// What one process knows of a world: who is asked for leave to begin a collective, and how the world ended.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/collectives/collective_call.h"
#include "src/collectives/mpi_engine.h"

namespace terrace {

// A group as this rank sees it.
struct MpiGroup {
  std::uint32_t number;
  std::string name;
  std::vector<int> world_ranks;
  // Guarded by the engine's mutex.
  std::uint64_t opened = 0;
  bool entering = false;  // or in the transfers after it
  std::optional<ControlMessage> opening{};
};

// Thread contract: any thread, one at a time for each group; abort: any.
class MpiWorld final : public MpiListener {
 public:
  MpiWorld(MpiEngine& engine, const CommunicatorOptions& options);
  ~MpiWorld() override;

  MpiEngine& engine() const { return engine_; }
  std::uint32_t number() const { return number_; }
  int rank() const { return engine_.process(); }
  // Of transfers that do not move, and of a referee that does not answer.
  std::chrono::milliseconds patience() const;

  void add(MpiGroup& group);
  void remove(MpiGroup& group) noexcept;
  // Returns the referee's message once all have come. Throws as Communicator says; the call has not begun
  // then.
  ControlMessage enter(MpiGroup& group, const CollectiveCall& call);
  // The call is over, when the emulated link has carried `bytes` from `from` on. (One link a rank; it counts
  // what comes as well as what goes, so that a receiver does not go on before its data could be there.)
  void leave(MpiGroup& group, MpiEngine::Clock::time_point from, std::uint64_t bytes);
  void abort(std::string_view cause) noexcept;

  std::string place(const MpiGroup& group, const CollectiveCall& call) const;

 private:
  void receive(const MpiEngine::Lock& lock, const ControlMessage& message) override;
  void fail(const MpiEngine::Lock& lock, const ControlMessage& failure);
  [[noreturn]] void throw_failure(const MpiEngine::Lock&, const MpiGroup& group, const CollectiveCall& call,
                                  bool entered) const;

  MpiEngine& engine_;
  const CommunicatorOptions options_;
  std::uint32_t number_ = 0;  // does not change
  // Guarded by the engine's mutex.
  std::map<std::uint32_t, MpiGroup*> groups_;
  std::optional<ControlMessage> failure_;
  MpiEngine::Clock::time_point link_free_{};
};

}  // namespace terrace
