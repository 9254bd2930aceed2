#include "src/optimizer/chunk_update.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/cpu/cast.h"
#include "src/base/fail.h"
#include "src/base/parallel_for.h"

namespace terrace {
namespace {

const void* advance(const void* data, DType dtype, std::uint64_t numel) {
  return static_cast<const std::byte*>(data) + numel * dtype_bytes(dtype);
}
void* advance(void* data, DType dtype, std::uint64_t numel) {
  return static_cast<std::byte*>(data) + numel * dtype_bytes(dtype);
}

// body(begin, end) for fixed pieces of [0, numel).
template <typename Body>
void for_pieces(std::uint64_t numel, const Body& body) {
  parallel_for(div_up(numel, kUpdatePieceNumel), [&](std::size_t piece) {
    const std::uint64_t begin = piece * kUpdatePieceNumel;
    body(begin, std::min(numel, begin + kUpdatePieceNumel));
  });
}

struct Update {
  AdamWSource source;
  AdamWTarget target;
  GradientView gradient;
  ParameterView parameter;
  float grad_scale;

  void copy_stream(const float* from, float* to, std::uint64_t begin, std::uint64_t end) const {
    if (from != to) std::memcpy(to + begin, from + begin, (end - begin) * sizeof(float));
  }
  void copy_state(std::uint64_t begin, std::uint64_t end) const {
    copy_stream(source.master, target.master, begin, end);
    copy_stream(source.exp_avg, target.exp_avg, begin, end);
    copy_stream(source.exp_avg_sq, target.exp_avg_sq, begin, end);
  }

  void padding(std::uint64_t begin, std::uint64_t end) const {
    if (begin >= end) return;
    copy_state(begin, end);
    std::memset(advance(parameter.data, parameter.dtype, begin), 0,
                (end - begin) * dtype_bytes(parameter.dtype));
  }

  void untouched(std::uint64_t begin, std::uint64_t end) const {
    copy_state(begin, end);
    cast_to(parameter.dtype, source.master + begin, advance(parameter.data, parameter.dtype, begin),
            end - begin);
  }

  void touched(std::uint64_t begin, std::uint64_t end, const AdamWScalars& scalars) const {
    adamw({source.master + begin, source.exp_avg + begin, source.exp_avg_sq + begin},
          {target.master + begin, target.exp_avg + begin, target.exp_avg_sq + begin},
          advance(gradient.data, gradient.dtype, begin), gradient.dtype,
          advance(parameter.data, parameter.dtype, begin), parameter.dtype, end - begin, grad_scale, scalars);
  }
};

std::vector<AdamWScalars> make_scalars(std::span<const ChunkSegment> segments,
                                       std::span<const AdamWHyper> groups, std::uint64_t numel) {
  std::vector<AdamWScalars> scalars(segments.size());
  std::uint64_t previous_end = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const ChunkSegment& segment = segments[i];
    check(
        segment.offset >= previous_end && segment.offset <= numel && segment.numel <= numel - segment.offset,
        "segment {} is [{}, +{}) in a chunk of {} elements, after one that ends at {}", i, segment.offset,
        segment.numel, numel, previous_end);
    previous_end = segment.offset + segment.numel;
    if (!segment.touched) continue;
    if (segment.group >= groups.size()) {
      fail(ErrorCode::invalid_argument, "segment {} names parameter group {}; there are {}", i, segment.group,
           groups.size());
    }
    scalars[i] = AdamWScalars::make(groups[segment.group], segment.step);
  }
  return scalars;
}

void require_blocks(std::span<double> block_sums, std::uint64_t numel) {
  check(block_sums.size() == div_up(numel, kBlockNumel), "{} block sums for {} elements", block_sums.size(),
        numel);
}

}  // namespace

void update_chunk(const AdamWSource& source, const AdamWTarget& target, GradientView gradient,
                  ParameterView parameter, std::uint64_t numel, std::span<const ChunkSegment> segments,
                  std::span<const AdamWHyper> groups, float grad_scale) {
  const std::vector<AdamWScalars> scalars = make_scalars(segments, groups, numel);
  const Update update{source, target, gradient, parameter, grad_scale};
  for_pieces(numel, [&](std::uint64_t begin, std::uint64_t end) {
    // The first segment that ends after `begin`.
    const auto first = std::upper_bound(
        segments.begin(), segments.end(), begin,
        [](std::uint64_t at, const ChunkSegment& segment) { return at < segment.offset + segment.numel; });
    std::uint64_t done = begin;
    for (auto segment = first; segment != segments.end() && segment->offset < end; ++segment) {
      const std::uint64_t from = std::max(begin, segment->offset);
      const std::uint64_t to = std::min(end, segment->offset + segment->numel);
      if (from >= to) continue;
      update.padding(done, from);
      if (segment->touched) {
        update.touched(from, to, scalars[static_cast<std::size_t>(segment - segments.begin())]);
      } else {
        update.untouched(from, to);
      }
      done = to;
    }
    update.padding(done, end);
  });
}

bool fold_chunk(GradientView gradient, float* accumulator, std::uint64_t numel, FoldPosition position,
                std::span<double> block_sums) {
  if (position.last) require_blocks(block_sums, numel);
  std::atomic<bool> finite{true};
  for_pieces(numel, [&](std::uint64_t begin, std::uint64_t end) {
    double* const sums = position.last ? block_sums.data() + begin / kBlockNumel : nullptr;
    if (!fold(advance(gradient.data, gradient.dtype, begin), gradient.dtype, accumulator + begin, end - begin,
              position, sums)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load();
}

void sum_gradients(GradientView gradients, std::uint64_t count, std::uint64_t numel, void* out) {
  const DType dtype = gradients.dtype;
  for_pieces(numel, [&](std::uint64_t begin, std::uint64_t end) {
    std::array<float, kBlockNumel> sum;
    for (; begin < end; begin += kBlockNumel) {
      const std::uint64_t size = std::min<std::uint64_t>(kBlockNumel, end - begin);
      for (std::uint64_t k = 0; k < count; ++k) {
        fold(advance(gradients.data, dtype, k * numel + begin), dtype, sum.data(), size,
             {.first = k == 0, .last = false}, nullptr);
      }
      cast_to(dtype, sum.data(), advance(out, dtype, begin), size);
    }
  });
}

void round_values(const float* values, DType dtype, std::uint64_t numel, void* out) {
  for_pieces(numel, [&](std::uint64_t begin, std::uint64_t end) {
    cast_to(dtype, values + begin, advance(out, dtype, begin), end - begin);
  });
}

bool chunk_stats(GradientView gradient, std::uint64_t numel, std::span<double> block_sums) {
  require_blocks(block_sums, numel);
  std::atomic<bool> finite{true};
  for_pieces(numel, [&](std::uint64_t begin, std::uint64_t end) {
    if (!gradient_stats(advance(gradient.data, gradient.dtype, begin), gradient.dtype, end - begin,
                        block_sums.data() + begin / kBlockNumel)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load();
}

void leave_out(GradientView gradient, std::uint64_t numel, std::span<const ElementRange> ranges,
               std::span<double> block_sums) {
  require_blocks(block_sums, numel);
  std::vector<std::byte> copy(kBlockNumel * dtype_bytes(gradient.dtype));
  auto range = ranges.begin();
  for (std::uint64_t block = 0; block < block_sums.size(); ++block) {
    const std::uint64_t begin = block * kBlockNumel, end = std::min(numel, begin + kBlockNumel);
    while (range != ranges.end() && range->end <= begin) ++range;
    if (range == ranges.end()) return;
    if (range->begin >= end) continue;
    if (range->begin <= begin && range->end >= end) {
      block_sums[block] = 0;
      continue;
    }
    std::memcpy(copy.data(), advance(gradient.data, gradient.dtype, begin),
                (end - begin) * dtype_bytes(gradient.dtype));
    for (auto inside = range; inside != ranges.end() && inside->begin < end; ++inside) {
      const std::uint64_t from = std::max(inside->begin, begin), to = std::min(inside->end, end);
      std::memset(copy.data() + (from - begin) * dtype_bytes(gradient.dtype), 0,
                  (to - from) * dtype_bytes(gradient.dtype));
    }
    gradient_stats(copy.data(), gradient.dtype, end - begin, &block_sums[block]);
  }
}

}  // namespace terrace
