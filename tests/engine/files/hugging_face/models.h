// Small decoders of every shape that Hugging Face folders hold. Their weights tell parameter and element apart.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/export.h"
#include "engine/compile/model/config.h"

namespace shale::testing {

struct NamedModel {
  std::string name;
  DecoderConfig config;
};

// Returns models of awkward sizes: none is a multiple of a vector, and heads x head_width differs from the width where
// the family allows it.
std::vector<NamedModel> HfModels();
// Returns the model of HfModels() with this name, which must exist.
DecoderConfig HfModel(absl::string_view name);

// Returns element i of a parameter. It is exact in fp32, and two elements hardly ever have the same value.
float TestWeight(absl::string_view parameter, int64_t i);
// Fills `values` with TestWeight of the elements from `begin` on, and returns OK.
absl::Status ReadTestWeights(absl::string_view parameter, int64_t begin, absl::Span<float> values);

// Exports the model with TestWeight as its weights.
absl::Status ExportTestModel(const DecoderConfig& config, const std::string& folder, HfExportOptions options = {});

}  // namespace shale::testing
