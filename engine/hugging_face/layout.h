// Which tensors of a Hugging Face folder hold which parameters of the decoder.
//
// A parameter of ours is rows of `columns` elements (a vector: rows of one). A folder may keep its rows in several
// tensors (q_proj, k_proj, v_proj), in another order (Falcon keeps the query heads, the key and the value of a group
// together) or transposed (GPT-2's Conv1D keeps [in, out]).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/model/config.h"

namespace shale {

// Rows [row, row + rows) of parameter number `parameter` are rows [tensor_row, tensor_row + rows) of tensor number
// `tensor`; columns of it, where the tensor is transposed.
struct HfPiece {
  int parameter = 0;
  int tensor = 0;
  int64_t row = 0;
  int64_t tensor_row = 0;
  int64_t rows = 0;
};

struct HfParameter {
  std::string name;             // Ours, as BuildDecoder names it.
  std::vector<int64_t> shape;   // [n] or [rows, columns].
  std::vector<HfPiece> pieces;  // By `row`; together they cover it.

  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }
  int64_t elements() const { return rows() * columns(); }
};

struct HfTensor {
  std::string name;      // Without the prefix.
  bool prefixed = true;  // Files have the family's prefix before it; the head has none.
  bool transposed = false;
  std::vector<int64_t> shape;   // As it lies in the file.
  std::vector<HfPiece> pieces;  // By `tensor_row`; together they cover it.
};

struct HfLayout {
  std::string prefix;  // "model." or "transformer.".
  std::vector<HfParameter> parameters;
  std::vector<HfTensor> tensors;  // In the order in which transformers has them.
  absl::flat_hash_map<std::string, int> parameter_index;
  std::string embedding_name;  // Of the tensor that a tied head repeats, and of the head.
  static constexpr char kHeadName[] = "lm_head.weight";

  std::string FullName(const HfTensor& tensor) const { return tensor.prefixed ? prefix + tensor.name : tensor.name; }
};

// InvalidArgument, with the reason, for a decoder that no family expresses (ChooseHfModelType). Types that share a
// shape share a layout, so that only the config decides.
absl::StatusOr<HfLayout> MakeHfLayout(const DecoderConfig& config);

// True for the buffers that older folders keep beside the weights, by name without prefix: rotary frequencies, masks.
bool IsKnownHfBuffer(absl::string_view name);

}  // namespace shale
