// What the engine's thread holds: MPI requests, the messages on their way, and on process 0 the referees.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "src/collectives/mpi_engine.h"
#include "src/collectives/referee.h"

namespace terrace {

// Thread contract: the engine's thread. No call blocks.
class MpiWire {
 public:
  explicit MpiWire(MpiEngine& engine);
  ~MpiWire();
  void free();

  // Takes what other threads have posted, and moves what can move. Whether anything has.
  bool progress();
  bool idle() const { return owners_.empty(); }
  bool serves_referee() const { return process_ == 0 && processes_ > 1; }

 private:
  struct Incoming {  // a control message that MPI is bringing
    std::vector<std::byte> bytes{};
    bool arrived = false;
  };
  struct Request {  // one of the three
    MpiBatch* batch = nullptr;
    std::shared_ptr<std::vector<std::byte>> sent{};
    Incoming* incoming = nullptr;
  };

  void start(MpiBatch& batch);
  void send(int process, std::vector<std::byte> message);
  bool test();
  bool take_incoming();
  void handle(const std::vector<std::byte>& bytes);
  void referee(const ControlMessage& message);
  void say_bye();

  MpiEngine& engine_;
  const int process_, processes_;
  struct Mpi;
  const std::unique_ptr<Mpi> mpi_;
  std::vector<Request> owners_;  // of mpi_->requests
  std::deque<std::unique_ptr<Incoming>> incoming_;
  std::deque<std::vector<std::byte>> own_messages_;  // of this process to itself
  std::map<std::uint32_t, std::unique_ptr<Referee>> referees_;
  int byes_ = 0;
};

void check_mpi(int status, const char* what) noexcept;

}  // namespace terrace
