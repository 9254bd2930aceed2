#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "src/device/device.h"

namespace terrace {
namespace {

class HostDeviceTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Device> device_ = make_host_device(GetParam());
};

TEST_P(HostDeviceTest, RunsInOrderAndAcrossStreams) {
  auto first = device_->make_stream();
  auto second = device_->make_stream();
  std::vector<int> order;
  first->launch([&] { order.push_back(1); });
  const EventPtr event = first->record();
  first->launch([&] { order.push_back(3); });
  second->wait(event);
  second->launch([&] { order.push_back(2); });
  second->synchronize();
  first->synchronize();
  EXPECT_EQ(order, GetParam() ? (std::vector<int>{1, 2, 3}) : (std::vector<int>{1, 3, 2}));
}

TEST_P(HostDeviceTest, CopiesAndFails) {
  auto stream = device_->make_stream();
  int source = 7, target = 0;
  stream->copy(&target, &source, sizeof(int));
  stream->record()->wait();
  EXPECT_EQ(target, 7);
  EXPECT_THROW(
      {
        stream->launch([] { throw std::runtime_error("broken"); });
        stream->record()->wait();
      },
      std::runtime_error);
}

TEST(HostDevice, AdversarialRunsOnlyWhatIsWaitedFor) {
  auto device = make_host_device(true);
  auto stream = device->make_stream();
  int value = 0;
  stream->launch([&] { value = 1; });
  const EventPtr event = stream->record();
  stream->launch([&] { value = 2; });
  EXPECT_EQ(value, 0);
  event->wait();
  EXPECT_EQ(value, 1);
  stream->synchronize();
  EXPECT_EQ(value, 2);
}

TEST_P(HostDeviceTest, MemoryIsAlignedAndZero) {
  const AlignedMemory memory = device_->allocate(5 << 20, "a test");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % kHugePageBytes, 0u);
  EXPECT_EQ(memory.data()[12345], std::byte{0});
}

INSTANTIATE_TEST_SUITE_P(Modes, HostDeviceTest, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "adversarial" : "inline"; });

}  // namespace
}  // namespace terrace
