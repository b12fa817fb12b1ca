// Writes a model as a folder that transformers loads with no missing and no unexpected key.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/hugging_face/copied_files.h"
#include "engine/model/config.h"

namespace shale {

struct HfExportOptions {
  SafetensorsDType dtype = SafetensorsDType::kF32;  // F32, or F16 or BF16, rounded to nearest even.
  // Weights are cut into files of at most so many bytes of data (one tensor that has more gets a file of its own).
  int64_t max_file_bytes = 5'000'000'000;
  // The folder that the model came from; empty: none. Its config.json is the base of the new one (HfConfigOptions), and
  // its tokenizer files and generation_config.json are copied byte for byte (ListCopiedHfFiles).
  std::string base_folder;
};

// Fills `values` with elements [begin, begin + values.size()) of a parameter of the decoder, by the engine's name,
// row-major. Called on the caller's thread, for every element once, in ranges of at most 2 MiB.
using HfParameterReader =
    std::function<absl::Status(absl::string_view parameter, int64_t begin, absl::Span<float> values)>;

// Streams the weights into `folder`, which must be absent or empty (FailedPrecondition): model.safetensors, or
// model-0000i-of-0000n.safetensors with an index. A tied head is not written twice. The files are made in a hidden
// folder beside it, flushed, and renamed as a whole: after an error or a crash `folder` is as it was. Keeps at most 5
// MiB of its own. InvalidArgument for a decoder that no Hugging Face family expresses, or not the one of the base
// folder.
absl::Status ExportHf(const DecoderConfig& config, const HfExportOptions& options, const HfParameterReader& reader,
                      const std::string& folder);

}  // namespace shale
