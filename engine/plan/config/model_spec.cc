#include "engine/plan/config/model_spec.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shale {

ModelConfig ModelFromSpec(const proto::ModelSpec& spec, int64_t sequence_length) {
  ModelConfig model;
  ForEachModelKind([&](auto config) {
    if (ReadSpec(spec, sequence_length, config)) model = config;
  });
  return model;
}

void CheckModelRules(const proto::ModelSpec& spec, const ModelConfig& model, int64_t sequence_length,
                     SpecErrors* errors) {
  if (spec.kind_case() == proto::ModelSpec::KIND_NOT_SET) {
    std::vector<std::string> kinds;
    ForEachModelInFiles([&](const auto& kind) { kinds.push_back(absl::StrCat(kind.kName, " { ... }")); });
    errors->AddRule({"model", "model.hf_folder"},
                    absl::StrCat("missing; give ", absl::StrJoin(kinds, ", "), " or hf_folder"));
    return;
  }
  if (!spec.hf_folder().empty() && !std::holds_alternative<DecoderConfig>(model)) {
    const absl::string_view kind = KindName(model);
    errors->AddRule({"model.hf_folder", absl::StrCat("model.", kind)},
                    absl::StrCat("a Hugging Face folder holds a decoder; leave ", kind, " or hf_folder out"));
  }
  if (spec.has_adapter() && !std::holds_alternative<DecoderConfig>(model)) {
    const absl::string_view kind = KindName(model);
    errors->AddRule({"model.adapter", absl::StrCat("model.", kind)},
                    absl::StrCat("adapters are for the linear layers of a decoder; leave ", kind, " or adapter out"));
  }
  std::visit([&](const auto& config) { CheckKindRules(spec, config, sequence_length, *errors); }, model);
}

}  // namespace shale
