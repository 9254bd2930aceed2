// Tiny steps of every kind, and what the checker says of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/plan/tiny_step.h"

namespace terrace {

inline std::string texts(const std::vector<Violation>& violations) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(5, violations.size()); ++i) {
    text += std::string(name_of(violations[i].rule)) + ": " + violations[i].text + "\n";
  }
  return text;
}

inline OpId first(const StepProgram& program, const std::function<bool(const Op&)>& wanted) {
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (wanted(program.ops[id])) return id;
  }
  ADD_FAILURE() << "no such operation";
  return 0;
}

inline std::set<Rule> rules(const TinyStep& step) {
  std::set<Rule> found;
  for (const Violation& violation : check_program(step.program, step.input)) found.insert(violation.rule);
  return found;
}

inline const std::vector<ProgramKind> kKinds{
    ProgramKind::train,       ProgramKind::train_commit, ProgramKind::drain, ProgramKind::eval,
    ProgramKind::materialize, ProgramKind::commit,       ProgramKind::visit};
inline const std::vector<UpdateTime> kUpdateTimes{UpdateTime::next_forward, UpdateTime::backward};

// Options that between them use every operation and every tier.
inline std::vector<TinyOptions> varied() {
  std::vector<TinyOptions> all;
  for (const ProgramKind kind : kKinds) {
    for (const UpdateTime updates : kUpdateTimes) {
      for (const std::uint32_t contributions : {1u, 2u, 3u}) {
        for (const bool other : {false, true}) {
          TinyOptions options;
          options.kind = kind;
          options.updates = updates;
          options.contributions = contributions;
          options.carried = other ? 2 : (contributions == 3 ? 0 : 1);
          options.tied = other ? (contributions == 3 ? 2 : 1) : 0;
          options.recompute = contributions == 2 ? !other : other;
          options.activations = other ? Tier::nvme : (contributions == 2 ? Tier::host : Tier::device);
          if (other) {
            options.grad_dtype = DType::f32;
            options.state_homes = {Tier::nvme, Tier::device, Tier::host};
            std::reverse(options.param_homes.begin(), options.param_homes.end());
          }
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

// "train_commit, backward, 2 contributions".
inline std::string words(const TinyOptions& options) {
  return std::string(name_of(options.kind)) +
         (options.updates == UpdateTime::backward ? ", backward, " : ", next forward, ") +
         std::to_string(options.contributions) + " contributions";
}

}  // namespace terrace
