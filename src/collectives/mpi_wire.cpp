#include "src/collectives/mpi_wire.h"

#include <mpi.h>
#include <spdlog/fmt/fmt.h>

#include <string>
#include <utility>

#include "src/collectives/mpi_communicator.h"

namespace terrace {
namespace {

constexpr int kLooks = 10;  // into MPI before a pause

}  // namespace

struct MpiWire::Mpi {
  MPI_Comm control = MPI_COMM_NULL, data = MPI_COMM_NULL;
  std::vector<MPI_Request> requests;
};

void check_mpi(int status, const char* what) noexcept {
  if (status == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, words, &length);
  abort_mpi_job(std::string(what) + ": " + words);
}

MpiWire::MpiWire(MpiEngine& engine)
    : engine_(engine),
      process_(engine.process()),
      processes_(engine.processes()),
      mpi_(std::make_unique<Mpi>()) {
  for (MPI_Comm* const comm : {&mpi_->control, &mpi_->data}) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, comm), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
}

MpiWire::~MpiWire() = default;

void MpiWire::free() {
  MPI_Comm_free(&mpi_->control);
  MPI_Comm_free(&mpi_->data);
}

void MpiWire::start(MpiBatch& batch) {
  for (const MpiBatch::Piece& piece : batch.pieces_) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (piece.sends) {
      check_mpi(MPI_Isend(piece.data, piece.bytes, MPI_BYTE, piece.process, piece.tag, mpi_->data, &request),
                "MPI_Isend");
    } else {
      check_mpi(MPI_Irecv(piece.data, piece.bytes, MPI_BYTE, piece.process, piece.tag, mpi_->data, &request),
                "MPI_Irecv");
    }
    mpi_->requests.push_back(request);
    owners_.push_back({.batch = &batch});
  }
}

void MpiWire::send(int process, std::vector<std::byte> message) {
  if (process == process_) {
    own_messages_.push_back(std::move(message));
    return;
  }
  const auto bytes = std::make_shared<std::vector<std::byte>>(std::move(message));
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(bytes->data(), static_cast<int>(bytes->size()), MPI_BYTE, process, 0, mpi_->control,
                      &request),
            "MPI_Isend of a control message");
  mpi_->requests.push_back(request);
  owners_.push_back({.sent = bytes});
}

bool MpiWire::progress() {
  std::vector<std::vector<std::byte>> messages;
  std::vector<MpiBatch*> batches;
  {
    const MpiEngine::Lock lock = engine_.lock();
    std::swap(messages, engine_.posted_messages_);
    std::swap(batches, engine_.posted_batches_);
  }
  bool moved = !messages.empty() || !batches.empty();
  for (auto& message : messages) send(0, std::move(message));
  for (MpiBatch* const batch : batches) start(*batch);
  // Open MPI looks at what comes by TCP, and at some of what comes by shared memory, only now and then.
  for (int look = 0; look < kLooks; ++look) {
    const bool came = take_incoming(), went = test();
    moved = moved || came || went;
    if (moved) break;
  }
  while (!incoming_.empty() && incoming_.front()->arrived) {
    handle(incoming_.front()->bytes);
    incoming_.pop_front();
  }
  for (; !own_messages_.empty(); own_messages_.pop_front()) {
    moved = true;
    handle(own_messages_.front());
  }
  for (const auto& [world, referee] : referees_) referee->look_at_clock(Referee::Clock::now());
  return moved || !own_messages_.empty();
}

// In the order of their coming from each process, whatever their size.
bool MpiWire::take_incoming() {
  bool moved = false;
  while (processes_ > 1) {
    int there = 0, bytes = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, 0, mpi_->control, &there, &message, &status), "MPI_Improbe");
    if (there == 0) break;
    moved = true;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    Incoming& incoming = *incoming_.emplace_back(std::make_unique<Incoming>());
    incoming.bytes.resize(static_cast<std::size_t>(bytes));
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Imrecv(incoming.bytes.data(), bytes, MPI_BYTE, &message, &request), "MPI_Imrecv");
    mpi_->requests.push_back(request);
    owners_.push_back({.incoming = &incoming});
  }
  return moved;
}

bool MpiWire::test() {
  if (mpi_->requests.empty()) return false;
  std::vector<int> done(mpi_->requests.size());
  int count = 0;
  check_mpi(MPI_Testsome(static_cast<int>(mpi_->requests.size()), mpi_->requests.data(), &count, done.data(),
                         MPI_STATUSES_IGNORE),
            "a transfer");
  if (count <= 0) return false;
  {
    const MpiEngine::Lock lock = engine_.lock();
    const auto now = MpiEngine::Clock::now();
    bool ended = false;
    for (int i = 0; i < count; ++i) {
      const Request& owner = owners_[static_cast<std::size_t>(done[static_cast<std::size_t>(i)])];
      if (owner.incoming != nullptr) owner.incoming->arrived = true;
      if (owner.batch == nullptr) continue;
      owner.batch->moved_ = now;
      ended = --owner.batch->left_ == 0 || ended;
    }
    if (ended) engine_.changed_.notify_all();
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < mpi_->requests.size(); ++i) {
    if (mpi_->requests[i] == MPI_REQUEST_NULL) continue;
    mpi_->requests[kept] = mpi_->requests[i];
    if (kept != i) owners_[kept] = std::move(owners_[i]);
    ++kept;
  }
  mpi_->requests.resize(kept);
  owners_.resize(kept);
  return true;
}

void MpiWire::handle(const std::vector<std::byte>& bytes) {
  using enum ControlMessage::Kind;
  const ControlMessage message = decode(bytes);
  switch (message.kind) {
    case open:
    case failed:
    case all_bye:
      return engine_.deliver(message);
    case bye:
      return say_bye();
    default:
      return referee(message);
  }
}

void MpiWire::referee(const ControlMessage& message) {
  std::unique_ptr<Referee>& referee = referees_[message.world];
  if (!referee) {
    referee = std::make_unique<Referee>(
        message.world, processes_, [this](int rank, const ControlMessage& out) { send(rank, encode(out)); });
  }
  referee->receive(message, Referee::Clock::now());
  if (referee->finished()) referees_.erase(message.world);
}

void MpiWire::say_bye() {
  if (++byes_ < processes_) return;
  for (int process = 0; process < processes_; ++process) {
    send(process, encode({.kind = ControlMessage::Kind::all_bye}));
  }
}

}  // namespace terrace
