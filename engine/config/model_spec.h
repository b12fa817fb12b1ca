// The model in a job spec (message ModelSpec).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/config/errors.h"
#include "engine/config/field_range.h"
#include "engine/model/config.h"
#include "proto/job.pb.h"

namespace shale {

// Returns the model that `spec` describes, with all defaults that follow from the spec; a default model if it describes
// none. `sequence_length` is the default of max_positions. REQUIRES: CheckFields (engine/config/ranges.h) went over
// `spec`.
ModelConfig ModelFromSpec(const proto::ModelSpec& spec, int64_t sequence_length);

// Checks the rules about the model. `model` is what `spec` describes. CheckRules (engine/config/rules.h) calls it.
void CheckModelRules(const proto::ModelSpec& spec, const ModelConfig& model, int64_t sequence_length,
                     SpecErrors* errors);

// A size of the job, and the field that gives it.
struct SizeFactor {
  std::string path;
  int64_t size;
};

// A number that is a product of sizes.
struct SizeProduct {
  absl::string_view what;  // What it counts, in the plural.
  std::vector<SizeFactor> factors;
};

// The sizes of a step that those of its model are multiplied with.
struct StepSizes {
  SizeFactor micro_batch, sequence_length, accumulation_steps;
};

// What only one kind of model knows. Every kind has each of the functions below, in a file of its own (decoder_spec.cc,
// mlp_spec.cc). Other code calls them through std::visit or ForEachModelKind, which do not compile if one is missing.

// Return the range of every number in the spec of this kind. The argument only chooses the kind.
FieldRanges RangesOf(const DecoderConfig&);
FieldRanges RangesOf(const MlpConfig&);

// If `spec` describes a model of this kind, sets `config` to it as ModelFromSpec does and returns true. `config` has
// its default value before.
bool ReadSpec(const proto::ModelSpec& spec, int64_t sequence_length, DecoderConfig& config);
bool ReadSpec(const proto::ModelSpec& spec, int64_t sequence_length, MlpConfig& config);

// Write `config` into `spec`, with every default written out. Values that are still undecided (a vocabulary of 0) are
// left out.
void WriteSpec(const DecoderConfig& config, proto::ModelSpec& spec);
void WriteSpec(const MlpConfig& config, proto::ModelSpec& spec);

// Check the rules that only this kind has. `config` is what `spec` describes.
void CheckKindRules(const proto::ModelSpec& spec, const DecoderConfig& config, int64_t sequence_length,
                    SpecErrors& errors);
void CheckKindRules(const proto::ModelSpec& spec, const MlpConfig& config, int64_t sequence_length, SpecErrors& errors);

// Return the products of sizes that count activations. CheckSizes (engine/config/rules.h) refuses one above 2^62.
std::vector<SizeProduct> ActivationSizes(const DecoderConfig& config, const StepSizes& step);
std::vector<SizeProduct> ActivationSizes(const MlpConfig& config, const StepSizes& step);

}  // namespace shale
