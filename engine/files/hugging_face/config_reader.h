// What the families share to read a config.json (engine/files/hugging_face/family.h).
#pragma once

#include <cstdint>
#include <limits>

#include "absl/strings/string_view.h"
#include "engine/compile/model/config.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/config_parts.h"
#include "engine/files/hugging_face/strict_json.h"

namespace shale {

// Upper limits, which are those of the same fields in a job (engine/plan/config/decoder_spec.cc).
constexpr int64_t kMaxHfVocabulary = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxHfWidth = int64_t{1} << 24;
constexpr int64_t kMaxHfHidden = int64_t{1} << 26;
constexpr int64_t kMaxHfLayers = int64_t{1} << 16;
constexpr int64_t kMaxHfHeads = int64_t{1} << 20;
constexpr int64_t kMaxHfTokens = int64_t{1} << 24;

constexpr int64_t kDefaultHfWindow = 4096;  // What transformers takes for an absent sliding_window.

// A config.json on its way to a DecoderConfig. A family's function sets `c` and adds errors.
struct HfConfigReader {
  const Json& json;
  HfErrors& errors;
  const HfFields top;
  HfModelType type;
  DecoderConfig c = {};

  // Reads hidden_size, num_hidden_layers and num_attention_heads.
  void ReadSizes();
  // Returns width / heads. Adds an error if heads does not divide width.
  int64_t WidthOfHeads(absl::string_view width_key);
  // Sets the activation to the GELU that `key` names.
  void ReadGelu(absl::string_view key, absl::string_view absent);
  // Sets layer_pattern by the list layer_types. `window` is that of the layers that have one; 0: none may have it.
  void ReadLayerTypes(int64_t window, bool must_slide);
};

}  // namespace shale
