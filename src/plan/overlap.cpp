#include "src/plan/overlap.h"

#include <algorithm>

#include "src/base/fail.h"

namespace terrace {
namespace {

using Spans = std::vector<OpTime>;  // ascending, apart

Spans busy_spans(const std::vector<OpTime>& ops, const StepProgram& program, const std::vector<Lane>& lanes) {
  check(ops.size() == program.ops.size(), "times of {} operations for a program of {}", ops.size(),
        program.ops.size());
  Spans all;
  for (OpId id = 0; id < ops.size(); ++id) {
    const bool wanted = std::find(lanes.begin(), lanes.end(), program.ops[id].lane) != lanes.end();
    if (wanted && ops[id].end_us > ops[id].start_us) all.push_back(ops[id]);
  }
  std::sort(all.begin(), all.end(), [](const OpTime& a, const OpTime& b) { return a.start_us < b.start_us; });
  Spans merged;
  for (const OpTime& span : all) {
    if (merged.empty() || span.start_us > merged.back().end_us) {
      merged.push_back(span);
    } else {
      merged.back().end_us = std::max(merged.back().end_us, span.end_us);
    }
  }
  return merged;
}

Spans common(const Spans& a, const Spans& b) {
  Spans both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double start = std::max(a[i].start_us, b[j].start_us);
    const double end = std::min(a[i].end_us, b[j].end_us);
    if (start < end) both.push_back({start, end});
    (a[i].end_us < b[j].end_us ? i : j) += 1;
  }
  return both;
}

double length_us(const Spans& spans) {
  double sum = 0;
  for (const OpTime& span : spans) sum += span.end_us - span.start_us;
  return sum;
}

}  // namespace

double busy_us(const std::vector<OpTime>& ops, const StepProgram& program, const std::vector<Lane>& lanes) {
  return length_us(busy_spans(ops, program, lanes));
}

double overlap_us(const std::vector<OpTime>& ops, const StepProgram& program,
                  const std::vector<Lane>& lanes) {
  if (lanes.empty()) return 0;
  Spans spans = busy_spans(ops, program, {lanes[0]});
  for (std::size_t i = 1; i < lanes.size(); ++i) spans = common(spans, busy_spans(ops, program, {lanes[i]}));
  return length_us(spans);
}

}  // namespace terrace
