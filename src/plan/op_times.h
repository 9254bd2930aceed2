// How long each operation of a program takes: from a machine's rates, or from a run. Pure.
#pragma once

#include <vector>

#include "src/plan/plan.h"
#include "src/plan/simulate.h"

namespace terrace {

// By operation, from the machine's rates.
std::vector<double> op_times_us(const StepProgram& program, const MachineProfile& machine);

// The shortest time that each operation took over the programs of a run: an estimate of what it takes
// undisturbed. The same work in another program (an update in a drain, a forward in a step without pending
// updates) counts too.
class ShortestTimes {
 public:
  explicit ShortestTimes(const Plan& plan) : plan_(plan), shortest_us_(kProgramKinds) {}

  // `ops`: of a run of the plan's program of this kind; what did not run (both 0) is left out.
  void add(ProgramKind kind, const std::vector<OpTime>& ops);
  // By operation. What never ran takes the time by byte (or FLOP) that its lane took for the rest.
  std::vector<double> op_times_us(ProgramKind kind) const;

 private:
  const Plan& plan_;
  std::vector<std::vector<double>> shortest_us_;  // by kind and operation; below 0: did not run
};

// The timeline of a program whose operations take these times, those of the disk lanes what the machine's
// rates give.
Timeline simulate_times(const StepProgram& program, const std::vector<double>& op_us,
                        const MachineProfile& machine);

}  // namespace terrace
