#include "src/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <mutex>

namespace terrace {

std::shared_ptr<spdlog::logger> logger() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto found = spdlog::get("terrace");
  if (!found) {
    found = spdlog::stderr_color_mt("terrace");
    found->set_pattern("%^%l%$: %v");
  }
  return found;
}

}  // namespace terrace
