// The metrics of a run as JSON lines. Numbers are written with the fewest digits that read back to the same
// value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

struct StepMetrics {
  std::uint64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;
  bool dropped = false;
  std::map<std::string, double> lanes;  // seconds that each lane was busy
  std::vector<double> rank_loss = {};   // by rank; left out with one
};

struct EndMetrics {
  std::string state_hash;
  std::uint64_t steps = 0;
  std::map<std::string, std::uint64_t> peak;  // bytes: planned of each tier, and held by the process
  std::optional<double> step_over_bound;      // left out where it is not known
};

// The line of a step, without its end.
std::string to_line(const StepMetrics& metrics);

// Each line is one write, so a killed run leaves at most its last line torn. A value that JSON has no number
// for (a NaN, an infinity) becomes null. Thread contract: one thread.
class MetricsWriter {
 public:
  // A new file (what stood there goes), or, with `committed_step`, the file of the run that is resumed: cut
  // back to that step, i.e. lines of later steps, an end line and a torn last line are removed; a missing
  // file is made. Throws io_failed; invalid_argument for a file to resume that holds anything but metrics,
  // which is left as it is.
  // `committed_line`: the committed step's own line, which is added where a kill came between the commit and
  // it.
  explicit MetricsWriter(const std::string& path, std::optional<std::uint64_t> committed_step = std::nullopt,
                         const std::string& committed_line = "");
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void step(const StepMetrics& metrics);
  void eval(std::uint64_t step, double loss);
  void end(const EndMetrics& metrics);

 private:
  void write_line(std::string line);

  std::string path_;
  int fd_ = -1;
};

// Throws io_failed when the file cannot be opened to write; changes nothing in it and makes none.
void require_writable_metrics(const std::string& path);

// What stays when a metrics file is cut back to `committed_step`: how many bytes, and the last step in them
// (0: none). The evaluation at that step goes too: the resumed run repeats it. Throws invalid_argument,
// naming `path` and the line, for a line that is no event.
struct KeptMetrics {
  std::size_t bytes = 0;
  std::uint64_t last_step = 0;
};
KeptMetrics kept_up_to_step(const std::string& text, std::uint64_t committed_step, const std::string& path);

}  // namespace terrace
