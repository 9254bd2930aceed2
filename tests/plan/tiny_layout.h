// Places and waits of a step program whose list is written: the slow, obvious way. Shares no code with the
// compiler or the checker.
#pragma once

#include "src/plan/program.h"

namespace terrace {

// Gives every slot the lowest place that no slot alive at the same time has, and each tier the bytes used.
// Resident and carried slots come first, in the order of their ids, so that they lie the same in programs
// that begin with the same ones; a slot carried out lies where its chunk's is carried in. Not compact: no
// bytes are used again, but by slots carried out.
void place(StepProgram& program, bool compact);

// The two operations touch a byte in common and at least one writes it.
bool conflict(const StepProgram& program, OpId a, OpId b);

// Replaces all waits: of every pair that conflicts, of folds and the verdict, and of what must precede or
// follow a commit, the later waits for the earlier; then what is implied is removed.
void derive_waits(StepProgram& program);

}  // namespace terrace
