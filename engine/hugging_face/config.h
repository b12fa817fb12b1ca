// config.json of a Hugging Face folder: to and from the engine's DecoderConfig.
//
// Families: llama, mistral, qwen2, qwen3, gpt2, falcon. What is read is what transformers computes from the same file,
// its defaults for absent keys included; only the sizes must be there. Settings of dropout are ignored: the engine
// trains without, and at inference there is none. Keys that have no part in the model's arithmetic (token ids,
// architectures, names) are not looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/hugging_face/model_type.h"
#include "engine/model/config.h"

namespace shale {

constexpr int64_t kMaxHfConfigBytes = int64_t{16} << 20;

// The decoder that `folder`/config.json describes. InvalidArgument, with a line `file: key: found ...; allowed: ...`
// for each, for whatever the engine cannot compute exactly: another model_type, alibi, other scalings of rotary
// frequencies than llama3, other activations, biases that only some layers have, windows that only some layers have,
// partial rotary, quantized weights; and for sizes and numbers that are missing, out of range or of another type. Files
// that lead out of the folder are refused as ResolveInFolder says.
absl::StatusOr<DecoderConfig> ReadHfConfig(const std::string& folder);

// The same for the text of the file; `path` stands in messages. Any bytes are fine as input.
absl::StatusOr<DecoderConfig> ParseHfConfig(absl::string_view text, const std::string& path);

struct HfConfigOptions {
  SafetensorsDType dtype = SafetensorsDType::kF32;  // What the weights beside it are written as: F32, F16 or BF16.
  // Text of the config.json that the model came from: its model_type stays, and so do keys that the engine does not
  // decide (token ids, architectures, dropout). Without it the type is ChooseHfModelType's and token ids are null.
  std::optional<std::string> base;
};

// The config.json with which transformers computes what the engine does; ParseHfConfig of it gives `config` back.
// InvalidArgument, with the first reason, if no family, or not the family of `base`, can express the config.
absl::StatusOr<std::string> HfConfigText(const DecoderConfig& config, const HfConfigOptions& options);

}  // namespace shale
