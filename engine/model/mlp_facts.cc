// The facts of MLPs (engine/model/config.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/model/config.h"
#include "engine/text/numbers.h"

namespace shale {

unsigned __int128 MlpConfig::ParameterCount(int64_t sequence_length) const {
  using Wide = unsigned __int128;
  const Wide width = hidden;
  const Wide first = static_cast<Wide>(sequence_length) * embedding * width + width;
  const Wide others = (layers - 1) * (width * width + width);
  return static_cast<Wide>(vocabulary) * embedding + first + others + width * vocabulary + vocabulary;
}

double MlpConfig::WidestRow() const { return std::max<double>(embedding, hidden); }

double MlpConfig::AttentionFlopsPerToken(int64_t) const { return 0; }

std::string MlpConfig::Description() const {
  return absl::StrCat("MLP, ", Plural(layers, "hidden layer"), " of width ", WithCommas(hidden), ", embedding ",
                      WithCommas(embedding), ", vocabulary ", WithCommas(vocabulary));
}

}  // namespace shale
