#include "src/collectives/control_message.h"

#include <cstring>
#include <string_view>
#include <type_traits>

#include "src/base/fail.h"

namespace terrace {
namespace {

class Writer {
 public:
  template <typename T>
  void value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(T));
  }
  template <typename T>
  void values(const T* data, std::size_t count) {
    value<std::uint64_t>(count);
    append(data, count * sizeof(T));
  }
  void text(std::string_view text) { values(text.data(), text.size()); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    if (bytes > 0) bytes_.insert(bytes_.end(), begin, begin + bytes);
  }
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(const std::vector<std::byte>& bytes) : bytes_(bytes) {}

  template <typename T>
  void value(T& out) {
    copy(&out, sizeof(T));
  }
  template <typename Values>
  void values(Values& out) {
    std::uint64_t count = 0;
    value(count);
    check(count <= bytes_.size() / sizeof(out[0]), "a control message of {} bytes has a list of {}",
          bytes_.size(), count);
    out.resize(count);
    copy(out.data(), count * sizeof(out[0]));
  }
  void end() const {
    check(at_ == bytes_.size(), "a control message has {} bytes, wanted {}", bytes_.size(), at_);
  }

 private:
  void copy(void* out, std::size_t bytes) {
    check(bytes <= bytes_.size() - at_, "a control message ends after {} bytes", bytes_.size());
    if (bytes > 0) std::memcpy(out, bytes_.data() + at_, bytes);
    at_ += bytes;
  }
  const std::vector<std::byte>& bytes_;
  std::size_t at_ = 0;
};

void write_call(Writer& writer, const CollectiveCall& call) {
  writer.value(call.kind);
  writer.value(call.label.unit);
  writer.value(call.label.step);
  writer.value(call.type);
  writer.value(call.root);
  writer.value(call.op);
  writer.value(call.numel);
  writer.value(call.present);
  writer.value(call.round);
  writer.text(call.label.what);
  writer.text(call.name);
  writer.values(call.parts.data(), call.parts.size());
  writer.values(call.receive_parts.data(), call.receive_parts.size());
  writer.values(call.ranks.data(), call.ranks.size());
}

std::shared_ptr<const CallRecord> read_call(Reader& reader) {
  auto record = std::make_shared<CallRecord>();
  CollectiveCall& call = record->call;
  reader.value(call.kind);
  reader.value(call.label.unit);
  reader.value(call.label.step);
  reader.value(call.type);
  reader.value(call.root);
  reader.value(call.op);
  reader.value(call.numel);
  reader.value(call.present);
  reader.value(call.round);
  reader.values(record->what);
  reader.values(record->name);
  reader.values(record->parts);
  reader.values(record->receive_parts);
  reader.values(record->ranks);
  call.label.what = record->what;
  call.name = record->name;
  call.parts = record->parts;
  call.receive_parts = record->receive_parts;
  call.ranks = record->ranks;
  return record;
}

}  // namespace

std::vector<std::byte> encode(const ControlMessage& message, const CollectiveCall* call) {
  Writer writer;
  writer.value(message.kind);
  writer.value(message.world);
  writer.value(message.group);
  writer.value(message.rank);
  writer.value(message.options.time_limit.count());
  writer.value(message.options.link_gbps);
  writer.value(message.code);
  writer.value(message.made);
  writer.text(message.text);
  writer.value<std::uint64_t>(message.waited_for.size());
  for (const auto& [group, whom] : message.waited_for) {
    writer.value(group);
    writer.text(whom);
  }
  const std::string present(message.present.begin(), message.present.end());
  writer.text(present);
  writer.value(call != nullptr);
  if (call != nullptr) write_call(writer, *call);
  return writer.take();
}

ControlMessage decode(const std::vector<std::byte>& bytes) {
  Reader reader(bytes);
  ControlMessage message;
  reader.value(message.kind);
  reader.value(message.world);
  reader.value(message.group);
  reader.value(message.rank);
  std::chrono::milliseconds::rep limit = 0;
  reader.value(limit);
  message.options.time_limit = std::chrono::milliseconds(limit);
  reader.value(message.options.link_gbps);
  reader.value(message.code);
  reader.value(message.made);
  reader.values(message.text);
  std::uint64_t groups = 0;
  reader.value(groups);
  for (std::uint64_t i = 0; i < groups; ++i) {
    auto& [group, whom] = message.waited_for.emplace_back();
    reader.value(group);
    reader.values(whom);
  }
  std::string present;
  reader.values(present);
  message.present.assign(present.begin(), present.end());
  bool has_call = false;
  reader.value(has_call);
  if (has_call) message.call = read_call(reader);
  reader.end();
  return message;
}

}  // namespace terrace
