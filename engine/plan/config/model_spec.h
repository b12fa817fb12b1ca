// Reads, writes and checks the model in a job spec (message ModelSpec).
//
// Also the adapters of a decoder (message AdapterSpec). engine/plan/config/decoder_spec.cc has the ranges of their
// numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/model/config.h"
#include "engine/plan/config/errors.h"
#include "proto/job.pb.h"

namespace shale {

// Returns the model that `spec` describes, with all defaults that follow from the spec filled in. Returns a default
// model if `spec` describes none. `sequence_length` is the default of max_positions. REQUIRES: CheckFields
// (engine/plan/config/job_from_spec.h) has checked `spec`.
ModelConfig ModelFromSpec(const proto::ModelSpec& spec, int64_t sequence_length);

// Checks the rules about the model and reports broken ones in `errors`. `model` is the model that `spec` describes.
// CheckRules (engine/plan/config/job_from_spec.h) calls it.
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

// The sizes of a step by which the sizes of a model are multiplied.
struct StepSizes {
  SizeFactor micro_batch, sequence_length, accumulation_steps;
};

// The functions below are specific to one kind of model. Every kind defines each of them: decoders in decoder_spec.cc,
// the others in model_spec.cc. Other code calls them through std::visit or ForEachModelKind, which do not compile if
// one is missing.

// Return whether `spec` describes a model of this kind. If so, set `config` to that model, as ModelFromSpec does.
// REQUIRES: `config` has its default value.
bool ReadSpec(const proto::ModelSpec& spec, int64_t sequence_length, DecoderConfig& config);
bool ReadSpec(const proto::ModelSpec& spec, int64_t sequence_length, MlpConfig& config);
bool ReadSpec(const proto::ModelSpec& spec, int64_t sequence_length, CustomModel& config);

// Write `config` into `spec`, with every default written out, also in fields that then have no effect
// (engine/plan/config/job_from_spec.h). Leave out values that are still undecided (a vocabulary of 0).
void WriteSpec(const DecoderConfig& config, proto::ModelSpec& spec);
void WriteSpec(const MlpConfig& config, proto::ModelSpec& spec);
void WriteSpec(const CustomModel& config, proto::ModelSpec& spec);

// Check the rules that only this kind has, and report broken ones in `errors`. `config` is the model that `spec`
// describes.
void CheckKindRules(const proto::ModelSpec& spec, const DecoderConfig& config, int64_t sequence_length,
                    SpecErrors& errors);
void CheckKindRules(const proto::ModelSpec& spec, const MlpConfig& config, int64_t sequence_length, SpecErrors& errors);
void CheckKindRules(const proto::ModelSpec& spec, const CustomModel& config, int64_t sequence_length,
                    SpecErrors& errors);

// Return the products of sizes that count activations. CheckSizes (engine/plan/config/job_from_spec.h) refuses a
// product above 2^62.
std::vector<SizeProduct> ActivationSizes(const DecoderConfig& config, const StepSizes& step);
std::vector<SizeProduct> ActivationSizes(const MlpConfig& config, const StepSizes& step);
std::vector<SizeProduct> ActivationSizes(const CustomModel& config, const StepSizes& step);

AdapterConfig ReadAdapter(const proto::AdapterSpec& spec);
void WriteAdapter(const AdapterConfig& config, proto::AdapterSpec& spec);

// Reports targets that match no layer, and a rank that is too large for a layer. REQUIRES: config.adapter is given.
void CheckAdapter(const DecoderConfig& config, SpecErrors& errors);

}  // namespace shale
