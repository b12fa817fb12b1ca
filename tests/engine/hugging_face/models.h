// Small decoders of every shape that Hugging Face folders hold, with weights that tell where they came from.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/hugging_face/export.h"
#include "engine/model/config.h"

namespace shale::testing {

struct NamedModel {
  std::string name;
  DecoderConfig config;
};

// Awkward sizes: nothing is a multiple of a vector, heads x head_width is not the width where a family allows that.
std::vector<NamedModel> HfModels();
DecoderConfig HfModel(absl::string_view name);

// Element i of a parameter: exact in fp32, and hardly ever the same for two elements.
float TestWeight(absl::string_view parameter, int64_t i);
// Gives TestWeight.
absl::Status ReadTestWeights(absl::string_view parameter, int64_t begin, absl::Span<float> values);

// Exports the model with these weights.
absl::Status ExportTestModel(const DecoderConfig& config, const std::string& folder, HfExportOptions options = {});

}  // namespace shale::testing
