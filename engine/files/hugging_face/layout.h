// Maps the tensors of a Hugging Face folder to the parameters of the decoder.
//
// A parameter of the decoder has rows of `columns` elements (a vector has rows of one element). A folder may store its
// rows in several tensors (q_proj, k_proj, v_proj), in another order (Falcon stores the query heads, the key and the
// value of a group together) or transposed (GPT-2's Conv1D stores [in, out]).
//
// WriteHfTensors writes the tensors of a layout into a safetensors file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/export.h"
#include "engine/compile/model/config.h"
#include "engine/files/checkpoint/safetensors.h"

namespace shale {

// Rows [row, row + rows) of parameter number `parameter` are rows [tensor_row, tensor_row + rows) of tensor number
// `tensor`, or columns if the tensor is transposed.
struct HfPiece {
  int parameter = 0;
  int tensor = 0;
  int64_t row = 0;
  int64_t tensor_row = 0;
  int64_t rows = 0;
};

struct HfParameter {
  std::string name;             // The engine's name, from BuildDecoder.
  std::vector<int64_t> shape;   // [n] or [rows, columns].
  std::vector<HfPiece> pieces;  // Ordered by `row`; together they cover the parameter.

  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }
  int64_t elements() const { return rows() * columns(); }
};

struct HfTensor {
  std::string name;      // Without the family's prefix.
  bool prefixed = true;  // Whether files put the family's prefix before the name; false for the head.
  bool transposed = false;
  std::vector<int64_t> shape;   // Shape in the file.
  std::vector<HfPiece> pieces;  // Ordered by `tensor_row`; together they cover the tensor.
};

struct HfLayout {
  std::string prefix;  // "model." or "transformer.".
  std::vector<HfParameter> parameters;
  std::vector<HfTensor> tensors;  // In the order of transformers.
  absl::flat_hash_map<std::string, int> parameter_index;
  std::string embedding_name;  // Name, without prefix, of the tensor that a tied head repeats.
  static constexpr char kHeadName[] = "lm_head.weight";

  std::string FullName(const HfTensor& tensor) const { return tensor.prefixed ? prefix + tensor.name : tensor.name; }
};

// Returns the layout of a decoder. Returns InvalidArgument, with the reason, if no family can express the decoder
// (ChooseHfModelType). The layout depends only on the config, because types that can express the same decoder share a
// layout.
absl::StatusOr<HfLayout> MakeHfLayout(const DecoderConfig& config);

// Returns the layout of the adapters of a decoder alone, with the names of PEFT. Each adapted layer has two tensors,
// lora_A.weight [rank, in] and lora_B.weight [out, rank], which are not transposed in any family. REQUIRES:
// config.adapter is given.
absl::StatusOr<HfLayout> MakeHfAdapterLayout(const DecoderConfig& config);

// Returns whether `name`, without the prefix, is that of a buffer that older folders store beside the weights: rotary
// frequencies or masks.
bool IsKnownHfBuffer(absl::string_view name);

// Writes these tensors of the layout. Calls `reader` as ExportHf does. Uses at most 4 MiB of memory of its own.
absl::Status WriteHfTensors(const HfLayout& layout, const std::vector<const HfTensor*>& tensors, SafetensorsDType dtype,
                            const HfParameterReader& reader, const std::string& path);

}  // namespace shale
