// SIGINT and SIGTERM as a question: should the run stop after this step?
#pragma once

namespace terrace {

// While it lives, the first SIGINT or SIGTERM sets a flag and says so on standard error; the second has its
// usual effect. One at a time. `of_a_job`: SIGTERM is not answered in words, as mpirun sends it to every
// process of a job that has failed, where the cause should stand last.
class StopSignal {
 public:
  explicit StopSignal(bool of_a_job = false);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
};

}  // namespace terrace
