// Matrix products: oneDNN on one thread for one output tile; parallel_for over the tiles. How an output is
// cut into tiles and the summed dimension into pieces depends on the shapes alone, so that threads never show
// in the bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "src/base/aligned_memory.h"
#include "src/base/dtype.h"

namespace terrace {

// The largest output tile, and pieces of the summed dimension. Measured at GPT-2 shapes: 470 to 515 GFLOP/s a
// core in bf16.
inline constexpr std::int64_t kTileRows = 256;
inline constexpr std::int64_t kTileColumns = 384;
inline constexpr std::int64_t kTileDepth = 4096;

// An operand read by a product. Element (i, j) stands at data[i * stride + j], or at [j * stride + i] when
// transposed.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;
  bool transposed = false;

  // The same matrix from element (row, column) on.
  MatrixView from(std::int64_t row, std::int64_t column) const;
};

// Whether oneDNN multiplies this type at full speed here; if not (asked once, logged once), operands are
// widened to fp32 first: the same sums from exact products, at the speed of fp32. fp16 is always widened:
// oneDNN 2.6 multiplies it on no CPU. Thread-safe.
bool products_take(DType dtype);
inline bool products_take_bf16() {
  return products_take(DType::bf16);
}

// What a worker holds: scratch for its user, and operands widened to fp32 (0 where the type is taken as it
// is; they grow when a product needs more).
struct WorkerNeeds {
  std::size_t scratch_bytes = 0;
  std::size_t widened_a_bytes = 0;
  std::size_t widened_b_bytes = 0;
};

// What one thread needs while it computes a tile: scratch of a fixed size, and oneDNN's prepared primitives.
// Thread contract: one thread at a time.
class ProductWorker {
 public:
  explicit ProductWorker(const WorkerNeeds& needs);
  ~ProductWorker();

  // c[rows, columns] (fp32, row-major, `c_stride` apart) = a[rows, depth] * b[depth, columns], added to c
  // when `accumulate`. All sizes at least 1.
  void multiply(std::int64_t rows, std::int64_t columns, std::int64_t depth, const MatrixView& a,
                const MatrixView& b, float* c, std::int64_t c_stride, bool accumulate = false);

  std::byte* scratch() const { return scratch_.data(); }
  std::size_t bytes() const;

 private:
  struct Prepared;
  struct State;
  void multiply_piece(std::int64_t rows, std::int64_t columns, std::int64_t depth, const MatrixView& a,
                      const MatrixView& b, float* c, std::int64_t c_stride, bool accumulate);
  MatrixView widen(const MatrixView& view, std::int64_t rows, std::int64_t columns, AlignedMemory& buffer);

  AlignedMemory scratch_;
  AlignedMemory widened_a_;
  AlignedMemory widened_b_;
  std::unique_ptr<State> state_;
};

// As many workers as threads compute at once. Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(const WorkerNeeds& needs) : needs_(needs) {}

  // Makes workers until `count` are idle, so that no loop on so many threads makes one.
  void reserve(std::size_t count);

  class Lease {
   public:
    explicit Lease(WorkerPool& pool) : pool_(pool), worker_(pool.take()) {}
    ~Lease() { pool_.put(std::move(worker_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ProductWorker* operator->() const { return worker_.get(); }
    ProductWorker& operator*() const { return *worker_; }

   private:
    WorkerPool& pool_;
    std::unique_ptr<ProductWorker> worker_;
  };

  std::size_t bytes() const;  // of the workers that exist; not while a loop runs

 private:
  std::unique_ptr<ProductWorker> take();
  void put(std::unique_ptr<ProductWorker> worker);

  WorkerNeeds needs_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<ProductWorker>> idle_;
};

// How an output of this shape is cut: the largest tile, halved until there are kWantedTiles of them to share
// out or it is a quarter as long each way.
struct TileShape {
  std::int64_t rows = kTileRows;
  std::int64_t columns = kTileColumns;
};
inline constexpr std::int64_t kWantedTiles = 16;
TileShape tile_shape(std::int64_t rows, std::int64_t columns);

// One tile of an output, in fp32, in a worker's scratch.
struct ProductTile {
  std::int64_t row = 0;
  std::int64_t column = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const float* values = nullptr;
  std::int64_t stride = 0;
};

// Scratch that `product` takes of each worker.
inline constexpr std::size_t kTileBytes = sizeof(float) * kTileRows * kTileColumns;

// Computes a[rows, depth] * b[depth, columns] tile by tile and hands each finished tile to `finish`, on any
// thread, in any order; tiles do not overlap. A depth of 0 gives tiles of zeros.
void product(WorkerPool& pool, std::int64_t rows, std::int64_t columns, std::int64_t depth,
             const MatrixView& a, const MatrixView& b, const std::function<void(const ProductTile&)>& finish);

// The same into an fp32 matrix, added to it when `accumulate`. Depth at least 1.
void product_to(WorkerPool& pool, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                const MatrixView& a, const MatrixView& b, float* c, std::int64_t c_stride, bool accumulate);

}  // namespace terrace
