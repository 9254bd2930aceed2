// SIGINT and SIGTERM as a question: should the run stop after this step?
#pragma once

namespace terrace {

// While it lives, the first SIGINT or SIGTERM sets a flag and says so on standard error; the second has its
// usual effect. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
};

}  // namespace terrace
