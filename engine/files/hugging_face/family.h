// The families: the architectures of transformers that the engine computes exactly.
//
// A family is a row of families.cc and a file <name>_family.cc with the functions of that row: from a config.json to
// the list of blocks (DecoderConfig) and back, which decoders it can express, and where its tensors lie.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/compile/model/config.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/config_parts.h"

namespace shale {

struct HfConfigReader;   // engine/files/hugging_face/config_reader.h
struct HfConfigWriter;   // engine/files/hugging_face/config_writer.h
struct HfLayoutBuilder;  // engine/files/hugging_face/layout_builder.h

struct HfFamily {
  HfModelType type;
  absl::string_view name;          // model_type in config.json.
  absl::string_view architecture;  // The class with a language-model head.
  absl::Span<const DropoutKey> dropout;
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
void LayOutLlama(HfLayoutBuilder& b);  // Gemma's, too.

void ReadGpt2(HfConfigReader& r);
void WriteGpt2(HfConfigWriter& w);
absl::Status CheckGpt2(HfModelType type, const DecoderConfig& c);
void LayOutGpt2(HfLayoutBuilder& b);

void ReadFalcon(HfConfigReader& r);
void WriteFalcon(HfConfigWriter& w);
absl::Status CheckFalcon(HfModelType type, const DecoderConfig& c);
void LayOutFalcon(HfLayoutBuilder& b);

void ReadGemma(HfConfigReader& r);
void WriteGemma(HfConfigWriter& w);
absl::Status CheckGemma(HfModelType type, const DecoderConfig& c);

// For the checks.
absl::Status RefuseHf(HfModelType type, absl::string_view reason);
// Returns OK if the config has none of what only Gemma's blocks have.
absl::Status CheckPlainBlocks(HfModelType type, const DecoderConfig& c);
// Does the same for what no family with LayerNorm has.
absl::Status CheckLayerNormed(HfModelType type, const DecoderConfig& c);
constexpr absl::string_view kHalfBiased = "only one of qkv_bias and linear_bias";

}  // namespace shale
