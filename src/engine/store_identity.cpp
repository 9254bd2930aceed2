#include "src/engine/store_identity.h"

#include <nlohmann/json.hpp>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/engine/engine.h"

namespace terrace {

using Json = nlohmann::ordered_json;

std::string store_identity(const EngineModel& model, std::uint32_t cut_ranks) {
  return Json{{"identity", Json::parse(model.identity)},
              {"numerics", Json::parse(model.numerics)},
              {"cut_ranks", cut_ranks}}
      .dump();
}

std::uint32_t compare_identity(const std::string& stored, const EngineModel& model, const std::string& path,
                               bool compares_numerics) {
  const auto theirs = Json::parse(stored, nullptr, false);
  if (theirs.is_discarded() || !theirs.contains("identity") || !theirs.contains("numerics")) {
    fail(ErrorCode::corrupt, "the store {} does not say which model it holds", path);
  }
  const auto ours = Json::parse(model.identity);
  const auto refuse = [&](const std::string& key, const Json& other, const Json& own) {
    const auto text = [](const Json& json) { return json.is_null() ? std::string("nothing") : json.dump(); };
    fail(ErrorCode::invalid_argument, "the store {} was written with {} = {}; {} {}", path, key, text(other),
         model.says, text(own));
  };
  for (const auto& [key, value] : ours.items()) {
    const auto other = theirs["identity"].value(key, Json());
    if (other != value) refuse(key, other, value);
  }
  for (const auto& [key, other] : theirs["identity"].items()) {
    if (!ours.contains(key)) refuse(key, other, Json());
  }
  const std::uint32_t cut_ranks = theirs.value("cut_ranks", 1u);
  if (!compares_numerics) return cut_ranks;
  const auto numerics = Json::parse(model.numerics);
  for (const auto& [key, value] : numerics.items()) {
    const auto other = theirs["numerics"].value(key, Json());
    if (other != value) {
      logger()->warn("the store {} was written with {} = {}, this run has {}: it will not give the same bits",
                     path, key, other.dump(), value.dump());
    }
  }
  return cut_ranks;
}

}  // namespace terrace
