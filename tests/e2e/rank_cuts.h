// What the tests of ranks go through: cuts of a step, and meshes.
#pragma once

#include <cstdint>
#include <ostream>

namespace terrace::e2e {

struct Cut {
  std::uint32_t contributions;
  const char* compute;
  double clip_norm;
};

inline std::ostream& operator<<(std::ostream& out, const Cut& cut) {
  return out << cut.contributions << " contributions, " << cut.compute
             << (cut.clip_norm > 0 ? "" : ", no clipping");
}

struct Mesh {
  std::uint32_t ranks;
  const char* stage;
  std::uint32_t replicas = 0;
};

}  // namespace terrace::e2e
