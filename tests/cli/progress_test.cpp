#include "src/cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "src/cli/stop_signal.h"
#include "src/cli/text.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

StepReport report_of(std::uint64_t step, std::uint64_t total) {
  return {step, total, 2.43125, 0.8731, 3e-4, 1843.4, false, 80};
}

// What `body` prints to a Progress.
template <typename Body>
std::string printed(bool terminal, Body body) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  Progress progress(out, terminal);
  body(progress);
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(Text, Durations) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(3599), "59m59s");
  EXPECT_EQ(duration_text(3600), "1h00m");
  EXPECT_EQ(duration_text(86399), "23h59m");
  EXPECT_EQ(duration_text(86400 * 3 + 3600 * 4), "3d04h");
  for (const double bad : {-1.0, std::nan(""), kInfinity, 1e300}) EXPECT_EQ(duration_text(bad), "?");
}

TEST(Text, NumbersAndSizes) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1002003), "1,002,003");
  EXPECT_EQ(grouped(~std::uint64_t{0}), "18,446,744,073,709,551,615");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1.00 KiB");
  EXPECT_EQ(size_text(std::uint64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(size_text(std::uint64_t{1} << 60), "1048576.00 TiB");
}

TEST(Progress, AStepIsALine) {
  EXPECT_EQ(step_line(report_of(20, 400)),
            "step  20/400  loss 2.4312  1,843 tokens/s  grad norm 0.873  lr 3.00e-04  ETA 1m20s");
  StepReport odd = report_of(1, 2);
  odd.dropped = true;
  odd.loss = std::nan("");
  odd.tokens_per_s = kInfinity;
  odd.grad_norm = kInfinity;
  odd.eta_s = std::nan("");
  EXPECT_EQ(step_line(odd),
            "step 1/2  loss nan  0 tokens/s  grad norm inf  lr 3.00e-04  dropped: the gradient is not finite "
            " ETA ?");
}

TEST(Progress, TheBarFitsItsTerminal) {
  for (const std::uint64_t step : {0u, 1u, 199u, 400u, 500u}) {
    for (std::size_t columns = 1; columns < 200; ++columns) {
      EXPECT_LE(bar_line(report_of(step, 400), columns).size(), columns);
    }
  }
  EXPECT_THAT(bar_line(report_of(0, 400), 200), HasSubstr("[>                       ] step"));
  EXPECT_THAT(bar_line(report_of(200, 400), 200), HasSubstr("[============>           ] step"));
  EXPECT_THAT(bar_line(report_of(400, 400), 200), HasSubstr("[========================] step"));
  EXPECT_EQ(bar_line(report_of(1, 0), 90).find('['), std::string::npos);
}

TEST(Progress, LinesWithoutATerminalABarWithOne) {
  const auto run = [](Progress& progress) {
    progress.step(report_of(1, 2));
    progress.step(report_of(2, 2));
    progress.eval({2, 1.5});
    progress.finish();
  };
  const std::string plain = printed(false, run);
  EXPECT_EQ(plain, step_line(report_of(1, 2)) + "\n" + step_line(report_of(2, 2)) +
                       "\nstep 2  validation loss 1.5000\n");
  const std::string bar = printed(true, run);
  EXPECT_EQ(std::count(bar.begin(), bar.end(), '\r'), 2);
  EXPECT_EQ(std::count(bar.begin(), bar.end(), '\n'), 2);
  EXPECT_TRUE(bar.ends_with("\nstep 2  validation loss 1.5000\n"));
}

TEST(StopSignal, TheFirstSignalOnlyAsks) {
  for (const int number : {SIGINT, SIGTERM}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    raise(number);
    EXPECT_TRUE(stop.requested());
  }
  EXPECT_EXIT(
      {
        const StopSignal stop(true);
        raise(SIGTERM);
        if (!stop.requested()) std::abort();
        raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "^$");
  EXPECT_EXIT(
      {
        const StopSignal stop;
        raise(SIGTERM);
        raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "stopping");
}

}  // namespace
}  // namespace terrace
