// Writes a model as a folder that transformers loads without missing or unexpected keys.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/hugging_face/copied_files.h"
#include "engine/model/config.h"

namespace shale {

struct HfExportOptions {
  SafetensorsDType dtype = SafetensorsDType::kF32;  // F32, F16 or BF16. Values are rounded to nearest even.
  // The most bytes of data in one file of weights. A tensor that has more gets a file of its own.
  int64_t max_file_bytes = 5'000'000'000;
  // The folder that the model came from, or empty. The new config.json is based on its config.json (HfConfigOptions),
  // which a model that only has a tokenizer lacks. Its tokenizer files are copied byte for byte, and so is its
  // generation_config.json (ListCopiedHfFiles) if that has `end_tokens`.
  std::string base_folder;
  int32_t eos_token = -1;  // Of the tokenizer, for a config.json without a base; -1: unknown.
  // Tokens that end a generated text. transformers ends at the `eos_token_id` of generation_config.json, or, if there
  // is no such file, of config.json. The tokens that are missing there are added to generation_config.json.
  std::vector<int32_t> end_tokens;
};

// Returns FailedPrecondition if a checkpoint with `parameters` parameters has too few for a decoder of this many
// layers: the layout of a decoder takes memory for each layer, and the job in a crafted checkpoint may name any number.
absl::Status CheckLayers(const DecoderConfig& config, int64_t parameters);

// Fills `values` with elements [begin, begin + values.size()) of a parameter of the decoder, row-major. `parameter` is
// the engine's name. ExportHf calls it on the thread of its caller, once for every element, in ranges of at most 2 MiB.
using HfParameterReader =
    std::function<absl::Status(absl::string_view parameter, int64_t begin, absl::Span<float> values)>;

// Writes the model into `folder`. Returns FailedPrecondition if `folder` is neither absent nor empty. Streams the
// weights into model.safetensors, or into files model-0000i-of-0000n.safetensors with an index. Writes neither a tied
// head again nor adapters. Makes all files in a hidden folder beside `folder`, flushes them, and moves them into place
// by one rename, so that after an error or a crash `folder` is unchanged. Uses at most 5 MiB of memory of its own.
// Returns InvalidArgument if no Hugging Face family can express the decoder, or if the family of the base folder
// cannot.
absl::Status ExportHf(const DecoderConfig& config, const HfExportOptions& options, const HfParameterReader& reader,
                      const std::string& folder);

}  // namespace shale
