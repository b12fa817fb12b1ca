#include "engine/config/adapter_spec.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/config/members.h"
#include "engine/model/adapter.h"
#include "engine/text/quote.h"

namespace shale {
namespace {

constexpr char kTargets[] = "model.adapter.targets";
// Each target is compared with each layer of each block.
constexpr size_t kMostTargets = 64;

bool MatchesALayer(absl::string_view target, const std::vector<AdaptableLinear>& linears, int64_t layers) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const AdaptableLinear& linear : linears) {
      if (MatchesTarget(target, linear.NameIn(layer))) return true;
    }
  }
  return false;
}

}  // namespace

AdapterConfig ReadAdapter(const proto::AdapterSpec& spec) {
  AdapterConfig config;
  MemberReader reader(spec);
  VisitMembers(config, reader);
  if (!spec.has_alpha()) config.alpha = static_cast<double>(config.rank);
  if (config.targets.empty()) config.targets = {"*"};
  return config;
}

void WriteAdapter(const AdapterConfig& config, proto::AdapterSpec& spec) {
  MemberWriter writer(&spec);
  VisitMembers(config, writer);
}

void CheckAdapter(const DecoderConfig& config, SpecErrors& errors) {
  const AdapterConfig& adapter = *config.adapter;
  if (adapter.targets.size() > kMostTargets) {
    errors.Add(kTargets, absl::StrCat("found ", adapter.targets.size(), " patterns; allowed: up to ", kMostTargets));
    return;
  }
  const std::vector<AdaptableLinear> linears = AdaptableLinears(config);
  for (size_t i = 0; i < adapter.targets.size(); ++i) {
    if (MatchesALayer(adapter.targets[i], linears, config.layers)) continue;
    std::vector<std::string> names;
    for (const AdaptableLinear& linear : linears) names.push_back(linear.NameIn(0));
    errors.AddRule({absl::StrCat(kTargets, "[", i, "]"), "model.decoder.layers", "model.decoder.family"},
                   absl::StrCat(Quoted(adapter.targets[i]), " matches no linear layer of the model; found ",
                                absl::StrJoin(names, ", "),
                                ", and those of the other blocks; what follows a dot is "
                                "enough, and * matches any run of characters"));
  }
}

}  // namespace shale
