// The architectures of Hugging Face's transformers that the engine computes exactly, and which decoder is which.
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
std::optional<HfModelType> FindHfModelType(absl::string_view name);  // Nothing for a name that is none of them.
absl::string_view ArchitectureOf(HfModelType type);                  // The class with a language head.

// InvalidArgument, with the first reason, if a config.json of this type cannot say what `config` says.
absl::Status CheckExpressible(HfModelType type, const DecoderConfig& config);

// The first type that can say it: plain shapes are LLAMA, a window makes MISTRAL. InvalidArgument if none can.
absl::StatusOr<HfModelType> ChooseHfModelType(const DecoderConfig& config);

// Falcon's two architectures: the newer one has several key/value heads, or a norm each for attention and feed-forward.
// REQUIRES: CheckExpressible(kFalcon, config).
bool IsNewFalcon(const DecoderConfig& config);

}  // namespace shale
