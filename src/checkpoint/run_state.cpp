#include "src/checkpoint/run_state.h"

#include <nlohmann/json.hpp>

#include "src/base/fail.h"

namespace terrace {

std::string to_json(const RunState& state) {
  return nlohmann::json{{"step", state.step},
                        {"step_line", state.step_line},
                        {"sampler", state.sampler},
                        {"loss_scale", state.loss_scale},
                        {"updates", state.updates}}
      .dump();
}

RunState run_state_from_json(const std::string& json) {
  try {
    const auto parsed = nlohmann::json::parse(json);
    const auto step = parsed.at("step").get<std::uint64_t>();
    return {step, parsed.at("step_line").get<std::string>(), parsed.at("sampler").get<std::string>(),
            parsed.value("loss_scale", ""), parsed.value("updates", step)};
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::corrupt, "the store's run state cannot be read: {}", error.what());
  }
}

}  // namespace terrace
