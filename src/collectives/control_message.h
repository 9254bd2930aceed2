// What ranks and their referee tell each other, as bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/collectives/collective_call.h"
#include "src/collectives/communicator.h"
#include "terrace/error.h"

namespace terrace {

// A rank's call as it arrives elsewhere: what it says of the data, without the data.
struct CallRecord {
  CallRecord() = default;
  CallRecord(const CallRecord&) = delete;  // `call` points into the rest
  CallRecord& operator=(const CallRecord&) = delete;

  CollectiveCall call{};
  std::string what{}, name{};
  std::vector<Part> parts{}, receive_parts{};
  std::vector<int> ranks{};
};

// Groups of a world are numbered by its referee in the order of their making; 0 is the world itself.
struct ControlMessage {
  enum class Kind : std::uint8_t {
    // To the referee.
    hello,  // this rank is in the world, with these options
    enter,  // this rank has come to a collective
    leave,  // its handle of a group is destroyed
    abort,  // it failed: text
    close,  // it has no handle of the world any more
    bye,    // its process is about to exit
    // From the referee.
    open,    // all ranks have come: present (all_to_all, reduce_scatter), made (split)
    failed,  // the world has ended: code and text; of groups where this rank waits, whom it waited for
    all_bye  // every process is about to exit
  };
  Kind kind = Kind::hello;
  std::uint32_t world = 0;
  std::uint32_t group = 0;
  std::int32_t rank = 0;  // who sent it, in the world
  CommunicatorOptions options{};
  std::shared_ptr<const CallRecord> call{};
  ErrorCode code = ErrorCode::cancelled;
  std::string text{};
  std::vector<std::pair<std::uint32_t, std::string>> waited_for{};
  std::vector<bool> present{};  // by rank of the group
  std::uint32_t made = 0;       // a number of a group; 0: none
};

// `call`: of an enter, else null. Numbers in this machine's byte order: a job is of one kind of machine.
std::vector<std::byte> encode(const ControlMessage& message, const CollectiveCall* call = nullptr);
// Throws internal where the bytes are not a message.
ControlMessage decode(const std::vector<std::byte>& bytes);

}  // namespace terrace
