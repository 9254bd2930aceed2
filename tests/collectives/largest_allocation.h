// The largest single request that operator new has seen in this program.
#pragma once

#include <cstddef>

namespace terrace {

std::size_t largest_allocation();
void forget_allocations();

}  // namespace terrace
