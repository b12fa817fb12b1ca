// Storage: the table of the forms in which weights are stored between their uses.
//
// A rank holds its shard of a flat group, or all of it, in the stored form, and that form is what is gathered.
// Gatherer::Widen (engine/compile/step/gather.h) makes of it what ops use. A new form is a row here, an op that widens
// it, and its value in `Storage`.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/api/model.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

struct StorageRow {
  absl::string_view name;      // In job files.
  absl::string_view text;      // Where reports describe stored weights: "in bf16". Empty: nothing needs to be said.
  absl::string_view suffix;    // Of the name of a flat group that is stored so.
  bool matrices_only = false;  // Stores only matrices of linear layers in blocks.
  // Weights share numbers with others of their parameter. So a parameter is set all at once, and checkpoints hold its
  // codes and not its values (SavedTensors).
  bool quantized = false;
  int64_t block = 1;  // Each shard holds a multiple of so many weights.
  // Returns the dtype of the stored elements, and how many of them a shard of so many weights has.
  DType (*dtype)(DType used) = nullptr;
  int64_t (*elements)(int64_t weights) = nullptr;
  // Returns whether there is an op that makes weights of this dtype of it.
  bool (*widens_to)(DType used) = nullptr;
  // Returns the op that makes all weights of a flat group, `used`, of all its stored shards. Null if they are used as
  // they are stored.
  Op (*widen)(const Tensor& stored, const Tensor& used, int64_t shards) = nullptr;
};

const StorageRow& RowOf(Storage storage);
inline constexpr int kStorages = static_cast<int>(Storage::kNf4) + 1;

}  // namespace shale
