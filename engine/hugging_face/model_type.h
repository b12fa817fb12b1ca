// Lists the architectures of Hugging Face's transformers that the engine computes exactly, and finds the one that
// expresses a decoder.
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

absl::string_view ToString(HfModelType type);                        // The name in config.json: "llama".
std::optional<HfModelType> FindHfModelType(absl::string_view name);  // Returns nullopt for an unknown name.
absl::string_view ArchitectureOf(HfModelType type);                  // The class with a language-model head.

// Returns OK if a config.json of this type can express `config`, else InvalidArgument with the first reason.
absl::Status CheckExpressible(HfModelType type, const DecoderConfig& config);

// Returns the type that can express `config`. Prefers kLlama if kMistral can express it too. Returns InvalidArgument,
// with the reason of the closest type, if no type can.
absl::StatusOr<HfModelType> ChooseHfModelType(const DecoderConfig& config);

// Returns whether `config` needs Falcon's newer architecture, which alone can have several key/value heads that are
// fewer than the query heads, or separate norms for attention and feed-forward in a parallel block. REQUIRES:
// CheckExpressible(kFalcon, config) is OK.
bool IsNewFalcon(const DecoderConfig& config);

}  // namespace shale
