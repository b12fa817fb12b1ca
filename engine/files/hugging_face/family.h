// The families: the architectures of transformers that the engine computes exactly.
//
// A family is a row of families.cc and a file <name>_family.cc with the functions of that row: from a config.json to
// the list of blocks (DecoderConfig) and back, which decoders it can express, and where its tensors lie. Families share
// HfConfigReader and HfConfigWriter.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/compile/model/config.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/config_parts.h"
#include "engine/files/hugging_face/strict_json.h"

namespace shale {

struct HfLayoutBuilder;  // engine/files/hugging_face/layout_builder.h

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

// Writes the keys of `c` over those of a base, which `json` begins as. Erases keys that would contradict the written
// ones or mislead a reader.
struct HfConfigWriter {
  const DecoderConfig& c;
  const HfModelType type;
  Json json;

  template <typename T>
  void Set(absl::string_view key, T value) {
    json[std::string(key)] = std::move(value);
  }
  void SetOrNull(absl::string_view key, double value) { value > 0 ? Set(key, value) : Set(key, nullptr); }
  void Erase(absl::string_view key) { json.erase(std::string(key)); }
  // Writes what HfConfigReader::ReadSizes reads.
  void WriteSizes();
  // Writes the name of the activation, which is a GELU.
  void WriteGelu(absl::string_view key, absl::string_view tanh_name);
  // Writes the rotary frequencies. Writes the older keys, whichever keys the base has, because every release of
  // transformers reads them, and releases before 5 read only them.
  void WriteRope();
  // Writes the kind of each layer: layer_types.
  void WriteLayerTypes();
};

struct HfFamily {
  HfModelType type;
  absl::string_view name;                // model_type in config.json.
  absl::string_view architecture;        // The class with a language-model head.
  absl::Span<const DropoutKey> dropout;  // Its keys, which are written as 0 if there is no base.
  // Returns whether a decoder has the marks of this family, so that CheckExpressible of it gives the best reason if it
  // is not expressible. Several families may have the same marks; the first that can express the decoder is taken.
  bool (*resembles)(const DecoderConfig& config);
  void (*read)(HfConfigReader& reader);
  absl::Status (*check)(HfModelType type, const DecoderConfig& config);
  void (*write)(HfConfigWriter& writer);
  void (*layout)(HfLayoutBuilder& builder);
};

absl::Span<const HfFamily> HfFamilies();
const HfFamily& FamilyOf(HfModelType type);

// The functions of the rows, by file.
void ReadLlama(HfConfigReader& r);
void WriteLlama(HfConfigWriter& w);
absl::Status CheckLlama(HfModelType type, const DecoderConfig& c);
void LayOutLlama(HfLayoutBuilder& b);  // Also for Gemma and StarCoder 2.

void ReadGpt2(HfConfigReader& r);
void WriteGpt2(HfConfigWriter& w);
absl::Status CheckGpt2(HfModelType type, const DecoderConfig& c);
void LayOutGpt2(HfLayoutBuilder& b);

void ReadFalcon(HfConfigReader& r);
void WriteFalcon(HfConfigWriter& w);
absl::Status CheckFalcon(HfModelType type, const DecoderConfig& c);
void LayOutFalcon(HfLayoutBuilder& b);

void ReadStarcoder2(HfConfigReader& r);
void WriteStarcoder2(HfConfigWriter& w);
absl::Status CheckStarcoder2(HfModelType type, const DecoderConfig& c);

void ReadGemma(HfConfigReader& r);
void WriteGemma(HfConfigWriter& w);
absl::Status CheckGemma(HfModelType type, const DecoderConfig& c);

// For the checks.
absl::Status RefuseHf(HfModelType type, absl::string_view reason);
// Returns OK if the config has none of what only Gemma's blocks have.
absl::Status CheckPlainBlocks(HfModelType type, const DecoderConfig& c);
// Does the same for what no family with LayerNorm has.
absl::Status CheckLayerNormed(HfModelType type, const DecoderConfig& c);
// Returns OK if no layer has a window, and the heads together are as wide as the model.
absl::Status CheckPlainAttention(HfModelType type, const DecoderConfig& c);
constexpr absl::string_view kHalfBiased = "only one of qkv_bias and linear_bias";

}  // namespace shale
