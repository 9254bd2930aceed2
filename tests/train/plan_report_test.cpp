#include "terrace/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/disk_rates.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"
#include "src/train/machine_rates.h"
#include "terrace/error.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

Config config_of(bool on_disk) {
  Config config;
  config.model.layers = 4;
  config.model.width = 64;
  config.model.heads = 2;
  config.model.context = 32;
  config.placement.chunk_numel = 16384;
  config.tiers.host_bytes = 32 * kMiB;
  config.compute.threads = 2;  // they bring memory of their own
  if (on_disk) {
    config.tiers.nvme = {{"/nowhere", kGiB}};
    config.store.path = "/nowhere/store";
    config.placement.optimizer_state = {false, 0, 0, 1};
  }
  return config;
}

MachineRates rates() {
  MachineRates rates;
  rates.product_gflops = 400;
  rates.adamw_ns = 0.5;
  rates.copy_gbps = 20;
  rates.checksum_gbps = 25;
  rates.disk_read_gbps = 3;
  rates.disk_write_gbps = 6;
  rates.disk_both_gbps = 4;
  rates.disk = "made up";
  return rates;
}

TEST(PlanReport, MeasuresAndPredictsNothingByItself) {
  const PlanReport report = plan_report(config_of(true));
  EXPECT_TRUE(report.fits);
  EXPECT_THAT(report.text, Not(HasSubstr("predicted")));
  EXPECT_THAT(report.text, HasSubstr("where each class of data goes"));
  EXPECT_THAT(report.text, HasSubstr("space on nvme is checked and allocated first: "));
  EXPECT_THAT(report.text, HasSubstr("optimizer state slots"));
  EXPECT_THAT(report.text, HasSubstr("read ahead: states of "));
}

TEST(PlanReport, GivenRatesItPredicts) {
  for (const bool on_disk : {true, false}) {
    int asked = 0;
    const PlanReport report = plan_report(config_of(on_disk), [&](bool disk) {
      EXPECT_EQ(disk, on_disk);
      ++asked;
      return rates();
    });
    EXPECT_EQ(asked, 1);
    EXPECT_THAT(report.text, HasSubstr("the machine: products 400 GFLOP/s, AdamW 0.50 ns a parameter"));
    EXPECT_THAT(report.text, HasSubstr("2.00 + 2.00 both at once (made up)"));
    EXPECT_THAT(report.text, HasSubstr("\npredicted: "));
    EXPECT_THAT(report.text, HasSubstr(" a step; its bound is "));
  }
}

TEST(PlanReport, ASlowerDiskIsSeenInThePrediction) {
  const auto predicted = [](double disk) {
    MachineRates slow = rates();
    slow.disk_read_gbps *= disk;
    slow.disk_write_gbps *= disk;
    slow.disk_both_gbps *= disk;
    return plan_report(config_of(true), [&](bool) { return slow; }).text;
  };
  EXPECT_THAT(predicted(0.001), HasSubstr("the disk: "));
  EXPECT_THAT(predicted(1000), HasSubstr(": the cores: compute "));
}

TEST(PlanReport, WithoutDiskRatesItSaysSo) {
  MachineRates unknown = rates();
  unknown.disk_both_gbps = 0;
  unknown.disk = "not measured: why";
  const auto give = [&](bool) { return unknown; };
  const PlanReport report = plan_report(config_of(true), give);
  EXPECT_TRUE(report.fits);
  EXPECT_THAT(report.text, HasSubstr("disk not measured: why"));
  EXPECT_THAT(report.text, HasSubstr("not predicted: the disk's rates are not known"));
  EXPECT_THAT(plan_report(config_of(false), give).text, HasSubstr("\npredicted: "));
}

TEST(PlanReport, NothingIsMeasuredForARunThatDoesNotFit) {
  Config config = config_of(true);
  config.tiers.host_bytes = 64 * kKiB;
  const PlanReport report = plan_report(config, [](bool) -> MachineRates {
    ADD_FAILURE() << "asked for rates";
    return {};
  });
  EXPECT_FALSE(report.fits);
  EXPECT_THAT(report.text, HasSubstr("does not fit"));
}

class MachineRatesTest : public testing::Test {
 protected:
  ~MachineRatesTest() override { set_parallel_threads(0); }
};

TEST_F(MachineRatesTest, MeasuresWithoutADisk) {
  const MachineRates measured = measure_machine(config_of(false), false);
  EXPECT_GT(measured.product_gflops, 0);
  EXPECT_GT(measured.adamw_ns, 0);
  EXPECT_GT(measured.copy_gbps, 0);
  EXPECT_GT(measured.checksum_gbps, 0);
  EXPECT_EQ(measured.disk_both_gbps, 0);
  EXPECT_THAT(measured.disk, HasSubstr("moves nothing"));
}

TEST_F(MachineRatesTest, SaysWhyADiskWasNotMeasured) {
  const MachineRates measured = measure_machine(config_of(true), true);
  EXPECT_EQ(measured.disk_both_gbps, 0);
  EXPECT_THAT(measured.disk, HasSubstr("not measured: cannot create a nameless file in /nowhere"));
  EXPECT_EQ(host_profile(measured).at(Lane::nvme).gbps, 0);
}

TEST(HostProfile, IsTheRatesOfLanesThatShareTheCores) {
  const MachineProfile profile = host_profile(rates());
  EXPECT_EQ(profile.at(Lane::compute).gflops, 400);
  EXPECT_EQ(profile.at(Lane::optimizer).gbps, 56);  // 28 bytes a parameter in half a nanosecond
  EXPECT_EQ(profile.at(Lane::h2d).gbps, 20);
  EXPECT_EQ(profile.checksum_gbps, 25);
  EXPECT_NEAR(1 / profile.at(Lane::nvme).gbps + 1 / profile.at(Lane::nvme).write_gbps, 0.5, 1e-9);
  const auto resource = [&](Lane lane) { return profile.resource[static_cast<std::size_t>(lane)]; };
  for (const Lane lane : {Lane::optimizer, Lane::h2d, Lane::d2h})
    EXPECT_EQ(resource(lane), resource(Lane::compute));
  for (const Lane lane : {Lane::nvme, Lane::commit}) EXPECT_NE(resource(lane), resource(Lane::compute));
}

TEST(HostProfile, FoldersAreThoseOfTheTier) {
  Config config = config_of(true);
  EXPECT_THAT(nvme_folders(config), testing::ElementsAre("/nowhere"));
  config.tiers.nvme.clear();
  EXPECT_THAT(nvme_folders(config), testing::ElementsAre("/nowhere/store"));
}

}  // namespace
}  // namespace terrace
