// The architectures of Hugging Face's transformers that the engine computes exactly, and which of them expresses a
// decoder.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"

namespace shale {

enum class HfModelType { kLlama, kMistral, kQwen2, kQwen3, kGpt2, kFalcon };

constexpr HfModelType kAllHfModelTypes[] = {HfModelType::kLlama, HfModelType::kMistral, HfModelType::kQwen2,
                                            HfModelType::kQwen3, HfModelType::kGpt2,    HfModelType::kFalcon};

absl::string_view ToString(HfModelType type);                        // As in config.json: "llama".
std::optional<HfModelType> FindHfModelType(absl::string_view name);  // Nothing for an unknown name.
absl::string_view ArchitectureOf(HfModelType type);                  // The class with a language-model head.

// Returns InvalidArgument, with the first reason, if a config.json of this type cannot express `config`.
absl::Status CheckExpressible(HfModelType type, const DecoderConfig& config);

// Returns the first type that can express `config`: plain shapes are LLAMA, a window makes MISTRAL. Returns
// InvalidArgument if none can.
absl::StatusOr<HfModelType> ChooseHfModelType(const DecoderConfig& config);

// Returns whether Falcon's newer architecture is needed. It has several key/value heads, or separate norms for
// attention and feed-forward. REQUIRES: CheckExpressible(kFalcon, config) is OK.
bool IsNewFalcon(const DecoderConfig& config);

}  // namespace shale
