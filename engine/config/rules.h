// What fields must be together: contradictions, settings without effect, products of sizes.
#pragma once

#include "engine/config/errors.h"
#include "engine/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// `job` is what `spec` resolves to; the spec tells what was given and what is a default. Rules that involve a field
// which `errors` already has as faulty are passed over.
void CheckRules(const proto::Job& spec, const Job& job, SpecErrors* errors);

// The part of CheckRules about the model.
void CheckModelRules(const proto::ModelSpec& spec, const ModelConfig& model, int64_t sequence_length,
                     SpecErrors* errors);

// The part of CheckRules about sizes: every product that the engine forms stays below 2^62.
void CheckSizes(const Job& job, SpecErrors* errors);

// Parameters of a model with its vocabulary set, which no 64-bit number need hold.
unsigned __int128 ParameterCount(const ModelConfig& model, int64_t sequence_length);

}  // namespace shale
