// Reads, writes and checks the MLP in a job spec.
#include <vector>

#include "engine/plan/config/members.h"
#include "engine/plan/config/model_spec.h"

namespace shale {

bool ReadSpec(const proto::ModelSpec& model, int64_t, MlpConfig& config) {
  if (!model.has_mlp()) return false;
  MemberReader reader(model.mlp());
  VisitMembers(config, reader);
  return true;
}

void WriteSpec(const MlpConfig& config, proto::ModelSpec& model) {
  MemberWriter writer(model.mutable_mlp());
  VisitMembers(config, writer);
}

void CheckKindRules(const proto::ModelSpec&, const MlpConfig&, int64_t, SpecErrors&) {}  // The ranges suffice.

std::vector<SizeProduct> ActivationSizes(const MlpConfig& config, const StepSizes& step) {
  const auto& [micro, length, steps] = step;
  const SizeFactor embedding = {"model.mlp.embedding", config.embedding};
  const SizeFactor hidden = {"model.mlp.hidden", config.hidden};
  const SizeFactor layers = {"model.mlp.layers", config.layers};
  return {{"the embedded tokens", {micro, length, embedding}}, {"the activations", {micro, steps, hidden, layers}}};
}

}  // namespace shale
