// The library prints nothing; it logs through this one logger, whose sink the embedding program may replace.
#pragma once

#include <spdlog/spdlog.h>

#include <memory>

namespace terrace {

// The logger named "terrace" (to standard error until a program registers its own under that name).
// Thread-safe.
std::shared_ptr<spdlog::logger> logger();

}  // namespace terrace
