// What a decoder-only transformer is made of, and the tensors that follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

struct ModelSpec {
  std::uint32_t layers = 12;
  std::uint32_t width = 768;
  std::uint32_t heads = 12;
  std::uint32_t kv_heads = 0;   // 0 = heads
  std::uint32_t mlp_width = 0;  // 0 = 4 * width
  std::uint32_t vocabulary = 256;
  std::uint32_t context = 256;  // tokens of a sample
  bool tied_head = true;
  std::string norm = "layernorm";
  std::string position = "learned";
  std::string mlp = "gelu";
  double init_std = 0.02;

  std::uint32_t kv_head_count() const { return kv_heads == 0 ? heads : kv_heads; }
  std::uint32_t mlp_columns() const { return mlp_width == 0 ? 4 * width : mlp_width; }
  std::uint32_t head_width() const { return width / heads; }
  std::uint32_t unit_count() const { return layers + 2; }  // embedding, blocks, head
  std::uint32_t head_unit() const { return layers + 1; }
};

// Throws invalid_argument or unsupported, naming the key, what was wanted and what was got.
void validate(const ModelSpec& spec);

enum class InitRule : std::uint8_t { normal, zeros, ones };

// One parameter tensor: row-major, [rows, columns], or [columns] when rows is 1.
struct TensorInit {
  std::string name;        // unique in the model: "h.0.attn.qkv.weight"
  std::uint64_t rows = 1;  // outputs of a matrix, [out, in] as PyTorch's Linear
  std::uint64_t columns = 0;
  bool decay = false;  // matrices decay; biases and norms do not
  InitRule rule = InitRule::normal;
  double std = 0;  // of InitRule::normal

  std::uint64_t numel() const { return rows * columns; }
};

struct UnitTensors {
  std::string name;  // "embedding", "h.0", ..., "head"
  std::vector<TensorInit> tensors;
};

// The units in the order of a forward pass; within a unit, tensors in the order of the flat parameter.
// Matrices start from a normal distribution with init_std; the two projections of a block that add to the
// residual stream with init_std / sqrt(2 * layers), as GPT-2 does (Radford et al. 2019, section 2.3).
std::vector<UnitTensors> unit_tensors(const ModelSpec& spec);

// Writes the initial values of elements [begin, end) of a tensor to `out` (end - begin floats). A value
// depends only on (seed, name, element): any split into ranges gives the same bits. Thread-safe. Cost: about
// 50 ns a normal value.
void fill_initial(const TensorInit& tensor, std::uint64_t seed, std::uint64_t begin, std::uint64_t end,
                  float* out);

}  // namespace terrace
