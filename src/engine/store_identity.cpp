#include "src/engine/store_identity.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/engine/engine.h"

namespace terrace {

using Json = nlohmann::ordered_json;

namespace {

// Tensors whose blocks have no optimizer states where nothing else is in them.
Json master_only_names(const ModelShape& model) {
  Json names = Json::array();
  for (const UnitShape& unit : model.units) {
    for (const TensorShape& tensor : unit.tensors)
      if (tensor.master_only) names.push_back(tensor.name);
  }
  return names;
}

void say(const std::string& path, const std::vector<std::string>& names, const char* what) {
  if (names.empty()) return;
  logger()->info("the store {}: {} and {} more {}", path, names[0], names.size() - 1, what);
}

// The store's cut; and whether this run can train what it wants to.
void take_frozen(const Json& theirs, ModelShape& model, const std::string& path) {
  std::set<std::string> stored;
  for (const auto& name : theirs.value("frozen", Json::array())) stored.insert(name.get<std::string>());
  std::vector<std::string> frozen_now, trained_now;
  for (UnitShape& unit : model.units) {
    for (TensorShape& tensor : unit.tensors) {
      tensor.master_only = stored.contains(tensor.name);
      if (tensor.frozen && !tensor.master_only) frozen_now.push_back(tensor.name);
      if (!tensor.frozen && tensor.master_only) trained_now.push_back(tensor.name);
    }
  }
  // Block by block: a store has states of a whole chunk, and chunks are cut at blocks.
  for (const Chunk& block : cut_chunks(model, kBlockNumel)) {
    for (const Segment& segment : block.segments) {
      const TensorShape& tensor = model.units[block.unit].tensors[segment.tensor];
      if (tensor.frozen || !block.master_only) continue;
      fail(ErrorCode::invalid_argument,
           "the store {} was made with {} frozen and holds no optimizer states of it; wanted it frozen still "
           "(optimizer.groups), or another store.path",
           path, tensor.name);
    }
  }
  say(path, frozen_now, "were trained before and are frozen now; their optimizer states stay as they are");
  say(path, trained_now, "were frozen before and are trained now");
}

}  // namespace

std::string store_identity(const EngineModel& model, std::uint32_t cut_ranks) {
  return Json{{"identity", Json::parse(model.identity)},
              {"numerics", Json::parse(model.numerics)},
              {"cut_ranks", cut_ranks},
              {"frozen", master_only_names(model.shape)}}
      .dump();
}

std::uint32_t compare_identity(const std::string& stored, EngineModel& model, const std::string& path,
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
  take_frozen(theirs, model.shape, path);
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
