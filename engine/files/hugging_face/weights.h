// Reads the weights of a Hugging Face folder as parameters of the decoder.
//
//   SHALE_ASSIGN_OR_RETURN(const DecoderConfig config, ReadHfConfig(folder));
//   SHALE_ASSIGN_OR_RETURN(const HfWeights weights, HfWeights::Open(folder, config));
//   for (const HfParameterShape& p : weights.parameters()) weights.Read(p.name, begin, values);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/compile/model/config.h"

namespace shale {

struct HfParameterShape {
  std::string name;
  std::vector<int64_t> shape;

  bool operator==(const HfParameterShape&) const = default;
};

// The most memory of its own that HfWeights::Read uses while it runs.
inline constexpr int64_t kHfReadStagingBytes = int64_t{2} << 20;

// Owns the open files of one folder. Reads weights on demand, so that memory does not grow with the model. Cheap to
// move. One object serves all ranks of a process, because Read is safe for concurrent use by multiple threads.
class HfWeights {
 public:
  // Opens model.safetensors if it exists, else the files that model.safetensors.index.json names (transformers looks in
  // the same order), and reads their headers. Tensor names may have or lack the family's prefix ("model.",
  // "transformer."). Ignores the rotary frequencies and masks of older folders. A tied head may be stored in place of
  // the embedding, or in addition to it. In the second case Open reads both tensors, with two buffers of
  // kHfReadStagingBytes, and checks that they are equal.
  //
  // Returns InvalidArgument with all problems at once (at most 20 are shown): tensors that are missing, unknown to the
  // model, of another shape, of another dtype than F32, F16 or BF16, absent from the file in which the index places
  // them, or absent from the index. Returns NotFound if there are no weights.
  static absl::StatusOr<HfWeights> Open(const std::string& folder, const DecoderConfig& config);
  // Opens adapter_model.safetensors of a PEFT folder, whose tensors must be the adapters of `config`, and no others.
  // The parameters are then those of the adapters alone. Returns the same errors. REQUIRES: config.adapter is given.
  static absl::StatusOr<HfWeights> OpenAdapter(const std::string& folder, const DecoderConfig& config);
  HfWeights(HfWeights&&) noexcept;
  HfWeights& operator=(HfWeights&&) noexcept;
  ~HfWeights();

  const std::vector<HfParameterShape>& parameters() const;
  bool Has(absl::string_view parameter) const;

  // Fills `values` with elements [begin, begin + values.size()) of a parameter, row-major. Reads only these elements
  // from the files, and uses at most kHfReadStagingBytes of memory of its own. Gathers a parameter that is stored
  // transposed from its columns, so that long ranges cost less per element. Returns NotFound for an unknown name, and
  // OutOfRange if there are not that many elements.
  absl::Status Read(absl::string_view parameter, int64_t begin, absl::Span<float> values) const;

 private:
  struct State;
  explicit HfWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shale
