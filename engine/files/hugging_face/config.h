// Converts between the config.json of a Hugging Face folder and the engine's DecoderConfig, and between the
// adapter_config.json of a PEFT folder and its adapters.
//
// A config.json means what transformers computes from it, including the defaults of transformers for absent keys; only
// the sizes must be present. Dropout is no part of the config, because the engine trains without; HfDropout
// (engine/files/hugging_face/config_parts.h) says what a folder asks for. Keys that do not affect the model's
// arithmetic (token ids, architectures, names) are ignored. README.md lists the keys.
//
// HfModelType: the architectures of transformers that the engine computes exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/model/config.h"
#include "engine/files/checkpoint/safetensors.h"

namespace shale {

// The families, by their names in config.json. engine/files/hugging_face/family.h says what each is.
enum class HfModelType { kLlama, kMistral, kQwen2, kQwen3, kGpt2, kFalcon, kGemma2, kGemma3, kStarcoder2 };

absl::string_view ToString(HfModelType type);                        // The name in config.json: "llama".
std::optional<HfModelType> FindHfModelType(absl::string_view name);  // Returns nullopt for an unknown name.

// Returns OK if a config.json of this type can express `config`, else InvalidArgument with the first reason.
absl::Status CheckExpressible(HfModelType type, const DecoderConfig& config);

// Returns the type that can express `config`. Prefers kLlama if kMistral can express it too. Returns InvalidArgument,
// with the reason of the closest type, if no type can.
absl::StatusOr<HfModelType> ChooseHfModelType(const DecoderConfig& config);

constexpr int64_t kMaxHfConfigBytes = int64_t{16} << 20;

// Returns the decoder that `folder`/config.json describes. Returns InvalidArgument, with one line `file: key: found
// ...; allowed: ...` per problem, for everything that the engine cannot compute exactly: another model_type, alibi,
// scalings of rotary frequencies other than llama3 and linear, other activations, biases in only some layers,
// partial rotary embeddings, quantized weights. Also returns it for sizes and numbers that are missing, out of range or
// of another type, and for a link that leads out of the folder (ResolveInFolder).
absl::StatusOr<DecoderConfig> ReadHfConfig(const std::string& folder);

// Does the same for the text of a config.json. Messages name `path`. Accepts any bytes.
absl::StatusOr<DecoderConfig> ParseHfConfig(absl::string_view text, const std::string& path);

struct HfConfigOptions {
  SafetensorsDType dtype = SafetensorsDType::kF32;  // The dtype of the written weights: F32, F16 or BF16.
  // Text of the config.json that the model came from. The new text keeps its model_type and the keys that the engine
  // does not decide (token ids, architectures, dropout). Without a base, ChooseHfModelType chooses the type, and token
  // ids are null, but for that of `eos_token` unless it is -1.
  std::optional<std::string> base;
  int32_t eos_token = -1;
};

// Returns the text of a config.json with which transformers computes what the engine does. ParseHfConfig of that text
// returns `config`. Returns InvalidArgument, with the first reason, if no family can express the config, or if the
// family of `base` cannot.
absl::StatusOr<std::string> HfConfigText(const DecoderConfig& config, const HfConfigOptions& options);

// Returns the text of an adapter_config.json with which PEFT computes what the engine does. `base` is the folder or the
// name of the base model, or empty. Returns InvalidArgument if no Hugging Face family can express the decoder.
// REQUIRES: config.adapter is given.
absl::StatusOr<std::string> HfAdapterConfigText(const DecoderConfig& config, const std::string& base);

// Returns rank, alpha and rank_stabilized of the adapters of `folder`/adapter_config.json, without targets, which
// follow from the tensors, and without dropout (HfAdapterDropout). Returns InvalidArgument, with one line per problem
// as ReadHfConfig does, for everything that the engine cannot compute exactly: other kinds of adapters, biases, layers
// with ranks of their own, further modules that were trained, adapters of a base that their initialization changed
// (PiSSA and others), and settings of PEFT that it does not know.
absl::StatusOr<AdapterConfig> ReadHfAdapterConfig(const std::string& folder);

// Returns InvalidArgument if target_modules, exclude_modules or layers_to_transform of `folder`/adapter_config.json
// leave out a linear layer that has adapters in `config`: PEFT would ignore their tensors. REQUIRES: config.adapter is
// given.
absl::Status CheckHfAdapterModules(const std::string& folder, const DecoderConfig& config);

}  // namespace shale
