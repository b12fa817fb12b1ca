// The weights of a Hugging Face folder, read as parameters of the decoder.
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
#include "engine/model/config.h"

namespace shale {

struct HfParameterShape {
  std::string name;
  std::vector<int64_t> shape;

  bool operator==(const HfParameterShape&) const = default;
};

// The parameters of the decoder in the order in which BuildDecoder declares them. InvalidArgument for a decoder that no
// Hugging Face family expresses.
absl::StatusOr<std::vector<HfParameterShape>> HfParameterShapes(const DecoderConfig& config);

// What a read keeps of its own meanwhile.
inline constexpr int64_t kHfReadStagingBytes = int64_t{2} << 20;

// Open files of one folder; weights are read on demand, so that memory does not grow with the model. Cheap to move. One
// object serves all ranks of a process: reads may come from any thread.
class HfWeights {
 public:
  // Looks for model.safetensors, else for the files that model.safetensors.index.json names (transformers looks in the
  // same order), and reads their headers. Tensor names may have the family's prefix ("model.", "transformer.") or lack
  // it; rotary frequencies and masks that older folders keep are passed over. A tied head that is stored too must
  // repeat the embedding, which is compared (through two of kHfReadStagingBytes), or stand in for it.
  //
  // InvalidArgument lists everything at once (20 shown): tensors that are missing, that the model does not have, of
  // another shape, of another dtype than F32, F16 or BF16, that the index places in a file without them, or that lie in
  // a file without the index knowing. NotFound if there are no weights.
  static absl::StatusOr<HfWeights> Open(const std::string& folder, const DecoderConfig& config);
  HfWeights(HfWeights&&) noexcept;
  HfWeights& operator=(HfWeights&&) noexcept;
  ~HfWeights();

  const std::vector<HfParameterShape>& parameters() const;

  // Elements [begin, begin + values.size()) of a parameter, row-major. Reads no more of a file than these, and keeps at
  // most kHfReadStagingBytes of its own meanwhile. A parameter that lies transposed is gathered from its columns: long
  // ranges are cheaper by the element there. NotFound for an unknown name, OutOfRange if there are not that many
  // elements.
  absl::Status Read(absl::string_view parameter, int64_t begin, absl::Span<float> values) const;

 private:
  struct State;
  explicit HfWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shale
