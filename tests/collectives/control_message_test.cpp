#include "src/collectives/control_message.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace terrace {
namespace {

TEST(ControlMessage, ACallArrivesAsItWasMade) {
  const std::vector<Part> parts = {{1, 2}, {7, 0}}, receive = {{3, 4}, {5, 6}};
  const std::vector<int> ranks = {2, 0};
  CollectiveCall call{.kind = CollectiveKind::all_to_all,
                      .label = {.what = "a label longer than any small string holds", .unit = 4, .step = 7},
                      .type = WireType::bf16,
                      .root = 1,
                      .op = ReduceOp::max,
                      .numel = 9,
                      .parts = parts,
                      .receive_parts = receive,
                      .present = false,
                      .round = {.started = true, .last = true},
                      .ranks = ranks,
                      .name = "shards"};
  const ControlMessage sent{.kind = ControlMessage::Kind::enter, .world = 3, .group = 5, .rank = 2};
  const ControlMessage got = decode(encode(sent, &call));
  EXPECT_EQ(got.kind, sent.kind);
  EXPECT_EQ(got.world, 3u);
  EXPECT_EQ(got.group, 5u);
  EXPECT_EQ(got.rank, 2);
  ASSERT_TRUE(got.call);
  EXPECT_EQ(describe(got.call->call), describe(call));
  EXPECT_EQ(difference({call, 0, 0}, {got.call->call, 1, 1}), "");
  EXPECT_EQ(got.call->parts, parts);
  EXPECT_EQ(got.call->receive_parts, receive);
  EXPECT_EQ(got.call->ranks, ranks);
  EXPECT_EQ(got.call->call.name, "shards");
  EXPECT_FALSE(got.call->call.present);
  EXPECT_TRUE(got.call->call.round.started && got.call->call.round.last);
}

TEST(ControlMessage, AnAnswerArrivesAsItWasGiven) {
  const ControlMessage sent{.kind = ControlMessage::Kind::failed,
                            .options = {.time_limit = std::chrono::milliseconds(300), .link_gbps = 2.5},
                            .code = ErrorCode::does_not_fit,
                            .text = "rank 1 failed",
                            .waited_for = {{4, "rank 1"}, {0, ""}},
                            .present = {true, false, true},
                            .made = 6};
  const ControlMessage got = decode(encode(sent));
  EXPECT_EQ(got.options.time_limit, sent.options.time_limit);
  EXPECT_EQ(got.options.link_gbps, 2.5);
  EXPECT_EQ(got.code, sent.code);
  EXPECT_EQ(got.text, sent.text);
  EXPECT_EQ(got.waited_for, sent.waited_for);
  EXPECT_EQ(got.present, sent.present);
  EXPECT_EQ(got.made, 6u);
  EXPECT_FALSE(got.call);
}

TEST(ControlMessage, BytesThatAreNotAMessageAreRefused) {
  const std::vector<Part> parts = {{1, 2}};
  const CollectiveCall call{.parts = parts};
  const std::vector<std::byte> whole = encode({.text = "words"}, &call);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_TRUE(error_of([&] { decode(part); }).starts_with("internal: ")) << bytes;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(error_of([&] { decode(longer); }).starts_with("internal: "));
}

}  // namespace
}  // namespace terrace
