// Exports to folders of Hugging Face: a model, its adapters, its base, and both merged.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/api/model.h"

namespace shale {

// How ExportHf writes a model.
struct HfExportOptions {
  DType dtype = DType::kFloat32;  // Or kFloat16 or kBFloat16. Values are rounded to nearest even.
  // The most bytes of data in one file of weights. A tensor that has more gets a file of its own.
  int64_t max_file_bytes = 5'000'000'000;
  // The folder that the model came from, or empty. The new config.json is based on its config.json (HfConfigOptions); a
  // folder with a tokenizer alone has none. Its tokenizer files are copied byte for byte, and so is its
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

// Writes the model into `folder`, from which transformers loads it without missing or unexpected keys. Returns
// FailedPrecondition if `folder` is neither absent nor empty. Streams the weights into model.safetensors, or into files
// model-0000i-of-0000n.safetensors with an index. Writes no adapters, and a tied head only once. Makes all files in a
// hidden folder beside `folder`, flushes them, and moves them into place by one rename, so that after an error or a
// crash `folder` is unchanged. Uses at most 5 MiB of memory of its own. Returns InvalidArgument if no Hugging Face
// family can express the decoder, or if the family of the base folder cannot.
absl::Status ExportHf(const DecoderConfig& config, const HfExportOptions& options, const HfParameterReader& reader,
                      const std::string& folder);

// Writes adapter_config.json and adapter_model.safetensors into `folder`, with values rounded to `dtype`. PEFT loads
// the folder without missing or unexpected keys. `base` is the folder or the name of the base model for
// adapter_config.json, or empty. Calls `reader` and makes the folder as ExportHf does. Returns FailedPrecondition if
// `folder` is neither absent nor empty, and InvalidArgument if no Hugging Face family can express the decoder.
// REQUIRES: config.adapter is given.
absl::Status ExportHfAdapter(const DecoderConfig& config, DType dtype, const std::string& base,
                             const HfParameterReader& reader, const std::string& folder);

// The flag with which a user of a tool names the folder of the base.
inline constexpr absl::string_view kBaseFlag = "--base=FOLDER";

// The base of a checkpoint that holds adapters alone (Manifest::base), opened. Any number of threads may read.
struct OpenedBase {
  std::string folder;
  ReadBase read;  // Null if the checkpoint holds all parameters.
};

// Opens the base of a checkpoint of the given model in `folder`, or where the run had it if `folder` is empty. Returns
// InvalidArgument if a folder is given and the checkpoint has no base. Returns FailedPrecondition, or the error of
// HfWeights::Open, with the name of the checkpoint, if the folder does not hold the weights of such a model. The
// weights may still be those of another base, so the caller must compare their digest (CheckBaseDigest).
absl::StatusOr<OpenedBase> OpenBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                    const std::string& folder);

// Does the same, and reads all of the base once, to compare its digest.
absl::StatusOr<OpenedBase> OpenVerifiedBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                            const std::string& folder);

// Returns a reader of the weights of a decoder with its adapters merged into them. `reader` reads parameters as they
// are.
//
// A weight with an adapter reads as W + scale B A, which is computed in fp64 and rounded to fp32 once. Other parameters
// read as they are. The reader and its copies hold the adapters of one weight in memory. They are not thread-safe.
HfParameterReader WithAdaptersMerged(const DecoderConfig& config, HfParameterReader reader);

}  // namespace shale
