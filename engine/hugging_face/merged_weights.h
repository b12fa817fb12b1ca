// Reads the weights of a decoder with its adapters merged into them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/hugging_face/export.h"
#include "engine/model/adapter.h"
#include "engine/model/config.h"

namespace shale {

// A weight with an adapter reads as W + scale B A, which is computed in fp64 and rounded to fp32 once. Other parameters
// read as they are. Holds the adapters of one weight in memory. Not thread-safe.
class MergedWeights {
 public:
  // `reader` reads parameters as they are.
  MergedWeights(const DecoderConfig& config, HfParameterReader reader);

  // An HfParameterReader.
  absl::Status Read(absl::string_view parameter, int64_t begin, absl::Span<float> values);

 private:
  struct Adapter {
    AdaptableLinear linear;
    std::string a_name, b_name;
    std::vector<float> a, b;  // [rank, in] and [out, rank], while `loaded_` names their weight.
  };
  absl::Status Load(const std::string& weight, std::vector<Adapter>& adapters);
  void Add(const Adapter& adapter, int64_t begin, absl::Span<float> values) const;

  int64_t rank_ = 0;
  double scale_ = 0;
  HfParameterReader reader_;
  std::map<std::string, std::vector<Adapter>> adapters_;  // By weight.
  std::string loaded_;
};

}  // namespace shale
