// Do the programs of one kind, of all ranks, meet? Recomputed from the programs alone. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/check_program.h"

namespace terrace {

// Empty: they do. `programs` [rank], each legal by itself (check_program) for the same chunks; `mesh.rank`
// does not matter. It proves
// - taking operations in list order, every rank comes to each of its collectives (the verdict and the commit
//   are ones of all ranks) when the other ranks of the group come to the same: kind, group, unit and round.
//   With waits that point backward in each list no rank waits for ever, however lanes overtake each other;
// - the ranges that the ranks of a gather send tile what each of them ends with; the parts that are received
//   of a round are all that was contributed.
// `op` and `slot` of a violation are of the rank that its text names. Cost: O(ranks * operations).
std::vector<Violation> check_family(const std::vector<const StepProgram*>& programs, const CheckRanks& mesh);

}  // namespace terrace
