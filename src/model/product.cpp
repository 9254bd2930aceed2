#include "src/model/product.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/cpu/cast.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"

namespace terrace {
namespace {

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// oneDNN runs on OpenMP here; its setting is per thread. Products stay on the thread that asked for them.
void stay_on_this_thread() {
  thread_local bool done = false;
  if (!done) omp_set_num_threads(1);
  done = true;
}

bool ask_for_bf16() {
  constexpr int kBf16 = 0xe7;  // every instruction set that multiplies bf16 contains these (dnnl_types.h)
  static_assert(kBf16 == dnnl_cpu_isa_avx512_core_bf16);
  if ((static_cast<int>(dnnl::get_effective_cpu_isa()) & kBf16) == kBf16) return true;
  logger()->info("matrix products: no bf16 here; bf16 operands are widened to fp32");
  return false;
}

bool refuse_f16() {
  logger()->info("matrix products: no fp16 here; fp16 operands are widened to fp32 and multiplied in fp32");
  return false;
}

// rows, columns, depth, strides of a, b, c; then dtype and transposition of a and b and accumulate, a bit
// each.
using Key = std::array<std::int64_t, 7>;

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t part : key)
      hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(hash ^ (hash >> 32));
  }
};

dnnl::memory::desc describe(std::int64_t rows, std::int64_t columns, const MatrixView& view) {
  const auto type = view.dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  const auto strides =
      view.transposed ? dnnl::memory::dims{1, view.stride} : dnnl::memory::dims{view.stride, 1};
  return {{rows, columns}, type, strides};
}

}  // namespace

bool products_take(DType dtype) {
  switch (dtype) {
    case DType::bf16: {
      static const bool kBf16 = ask_for_bf16();
      return kBf16;
    }
    case DType::f16: {
      static const bool kF16 = refuse_f16();
      return kF16;
    }
    case DType::f32:
      break;
  }
  return true;
}

MatrixView MatrixView::from(std::int64_t row, std::int64_t column) const {
  const std::int64_t offset = transposed ? column * stride + row : row * stride + column;
  MatrixView view = *this;
  view.data = static_cast<const std::byte*>(data) + offset * static_cast<std::int64_t>(dtype_bytes(dtype));
  return view;
}

struct ProductWorker::Prepared {
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> arguments;
};

struct ProductWorker::State {
  dnnl::stream stream{cpu_engine()};
  std::unordered_map<Key, Prepared, KeyHash> prepared;
  AlignedMemory scratchpad;  // oneDNN's

  Prepared prepare(std::int64_t rows, std::int64_t columns, std::int64_t depth, const MatrixView& a,
                   const MatrixView& b, std::int64_t c_stride, bool accumulate);
};

ProductWorker::Prepared ProductWorker::State::prepare(std::int64_t rows, std::int64_t columns,
                                                      std::int64_t depth, const MatrixView& a,
                                                      const MatrixView& b, std::int64_t c_stride,
                                                      bool accumulate) {
  // One at a time: oneDNN hands what one thread prepared to the next that asks for the same, and
  // ThreadSanitizer does not see its locks.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto& engine = cpu_engine();
  const dnnl::memory::desc c_desc({rows, columns}, dnnl::memory::data_type::f32,
                                  dnnl::memory::dims{c_stride, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc desc(
      dnnl::matmul::desc(describe(rows, depth, a), describe(depth, columns, b), c_desc), attributes, engine);
  const std::size_t needed = desc.scratchpad_desc().get_size();
  if (scratchpad.size() < needed) scratchpad = AlignedMemory(needed, "oneDNN's scratchpad");
  return {dnnl::matmul(desc),
          {{DNNL_ARG_SRC, dnnl::memory(desc.src_desc(), engine, nullptr)},
           {DNNL_ARG_WEIGHTS, dnnl::memory(desc.weights_desc(), engine, nullptr)},
           {DNNL_ARG_DST, dnnl::memory(c_desc, engine, nullptr)},
           {DNNL_ARG_SCRATCHPAD, dnnl::memory(desc.scratchpad_desc(), engine, nullptr)}}};
}

ProductWorker::ProductWorker(const WorkerNeeds& needs)
    : scratch_(std::max<std::size_t>(needs.scratch_bytes, 1), "a compute thread's scratch") {
  if (needs.widened_a_bytes > 0)
    widened_a_ = AlignedMemory(needs.widened_a_bytes, "operands widened to fp32");
  if (needs.widened_b_bytes > 0)
    widened_b_ = AlignedMemory(needs.widened_b_bytes, "operands widened to fp32");
  stay_on_this_thread();
  state_ = std::make_unique<State>();
}

ProductWorker::~ProductWorker() = default;

std::size_t ProductWorker::bytes() const {
  return scratch_.size() + widened_a_.size() + widened_b_.size() + state_->scratchpad.size();
}

void ProductWorker::multiply(std::int64_t rows, std::int64_t columns, std::int64_t depth, const MatrixView& a,
                             const MatrixView& b, float* c, std::int64_t c_stride, bool accumulate) {
  stay_on_this_thread();
  for (std::int64_t k = 0; k < depth; k += kTileDepth) {
    const std::int64_t piece = std::min(kTileDepth, depth - k);
    multiply_piece(rows, columns, piece, a.from(0, k), b.from(k, 0), c, c_stride, accumulate || k > 0);
  }
}

// The view itself where the library takes its type.
MatrixView ProductWorker::widen(const MatrixView& view, std::int64_t rows, std::int64_t columns,
                                AlignedMemory& buffer) {
  if (products_take(view.dtype)) return view;
  if (view.transposed) std::swap(rows, columns);  // as it is stored
  const auto bytes = static_cast<std::size_t>(rows * columns) * sizeof(float);
  if (buffer.size() < bytes) buffer = AlignedMemory(bytes, "operands widened to fp32");
  auto* out = reinterpret_cast<float*>(buffer.data());
  const auto widen_rows = [&](const auto* in) {
    for (std::int64_t i = 0; i < rows; ++i) cast(in + i * view.stride, out + i * columns, columns);
  };
  if (view.dtype == DType::bf16) {
    widen_rows(static_cast<const bf16*>(view.data));
  } else {
    widen_rows(static_cast<const f16*>(view.data));
  }
  return {out, DType::f32, columns, view.transposed};
}

void ProductWorker::multiply_piece(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                   const MatrixView& a_in, const MatrixView& b_in, float* c,
                                   std::int64_t c_stride, bool accumulate) {
  const MatrixView a = widen(a_in, rows, depth, widened_a_);
  const MatrixView b = widen(b_in, depth, columns, widened_b_);
  check(a.dtype == b.dtype, "a product of {} and {}", dtype_name(a.dtype), dtype_name(b.dtype));
  const std::int64_t flags =
      (a.dtype == DType::bf16) | (a.transposed << 1) | (b.transposed << 2) | (accumulate << 3);
  const Key key{rows, columns, depth, a.stride, b.stride, c_stride, flags};
  auto found = state_->prepared.find(key);
  if (found == state_->prepared.end()) {
    found = state_->prepared.emplace(key, state_->prepare(rows, columns, depth, a, b, c_stride, accumulate))
                .first;
  }
  auto& arguments = found->second.arguments;
  arguments.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(a.data));
  arguments.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<void*>(b.data));
  arguments.at(DNNL_ARG_DST).set_data_handle(c);
  arguments.at(DNNL_ARG_SCRATCHPAD).set_data_handle(state_->scratchpad.data());
  found->second.primitive.execute(state_->stream, arguments);
}

void WorkerPool::reserve(std::size_t count) {
  const std::lock_guard lock(mutex_);
  while (idle_.size() < count) idle_.push_back(std::make_unique<ProductWorker>(needs_));
}

std::unique_ptr<ProductWorker> WorkerPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto worker = std::move(idle_.back());
      idle_.pop_back();
      return worker;
    }
  }
  return std::make_unique<ProductWorker>(needs_);
}

void WorkerPool::put(std::unique_ptr<ProductWorker> worker) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(worker));
}

std::size_t WorkerPool::bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& worker : idle_) sum += worker->bytes();
  return sum;
}

namespace {

std::int64_t pieces(std::int64_t total, std::int64_t piece) {
  return (total + piece - 1) / piece;
}

}  // namespace

TileShape tile_shape(std::int64_t rows, std::int64_t columns) {
  TileShape tile;
  bool halve_rows = true;
  while (pieces(rows, tile.rows) * pieces(columns, tile.columns) < kWantedTiles &&
         tile.columns > kTileColumns / 4) {
    (halve_rows ? tile.rows : tile.columns) /= 2;
    halve_rows = !halve_rows;
  }
  return tile;
}

namespace {

// Tiles in the order in which neighbours share columns of b: the larger operand is read once.
void for_each_tile(std::int64_t rows, std::int64_t columns, const TileShape& shape,
                   const std::function<void(const ProductTile&)>& body) {
  const std::int64_t down = pieces(rows, shape.rows);
  parallel_for(static_cast<std::size_t>(down * pieces(columns, shape.columns)), [&](std::size_t i) {
    ProductTile tile;
    tile.row = static_cast<std::int64_t>(i) % down * shape.rows;
    tile.column = static_cast<std::int64_t>(i) / down * shape.columns;
    tile.rows = std::min(shape.rows, rows - tile.row);
    tile.columns = std::min(shape.columns, columns - tile.column);
    body(tile);
  });
}

}  // namespace

void product(WorkerPool& pool, std::int64_t rows, std::int64_t columns, std::int64_t depth,
             const MatrixView& a, const MatrixView& b,
             const std::function<void(const ProductTile&)>& finish) {
  for_each_tile(rows, columns, tile_shape(rows, columns), [&](const ProductTile& place) {
    const WorkerPool::Lease worker(pool);
    auto* values = reinterpret_cast<float*>(worker->scratch());
    ProductTile tile = place;
    tile.values = values;
    tile.stride = tile.columns;
    if (depth == 0)
      std::memset(values, 0, sizeof(float) * static_cast<std::size_t>(tile.rows * tile.columns));
    worker->multiply(tile.rows, tile.columns, depth, a.from(tile.row, 0), b.from(0, tile.column), values,
                     tile.stride);
    finish(tile);
  });
}

void product_to(WorkerPool& pool, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                const MatrixView& a, const MatrixView& b, float* c, std::int64_t c_stride, bool accumulate) {
  check(depth > 0, "a product of depth 0 into a matrix");
  for_each_tile(rows, columns, tile_shape(rows, columns), [&](const ProductTile& tile) {
    const WorkerPool::Lease worker(pool);
    worker->multiply(tile.rows, tile.columns, depth, a.from(tile.row, 0), b.from(0, tile.column),
                     c + tile.row * c_stride + tile.column, c_stride, accumulate);
  });
}

}  // namespace terrace
