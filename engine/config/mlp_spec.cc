// Reads, writes and checks the MLP in a job spec.
#include <vector>

#include "engine/config/model_spec.h"

namespace shale {
namespace {

constexpr IntRange kMlpIntRanges[] = {
    {"model.mlp.vocabulary", 1, kInt32Max},
    {"model.mlp.embedding", 1, kMaxWidth, kRequired},
    {"model.mlp.hidden", 1, kMaxHidden, kRequired},
    {"model.mlp.layers", 1, kMaxLayers},
};

constexpr RealRange kMlpRealRanges[] = {
    {"model.mlp.init_std", 0, 100},
};

}  // namespace

FieldRanges RangesOf(const MlpConfig&) { return {kMlpIntRanges, kMlpRealRanges}; }

bool ReadSpec(const proto::ModelSpec& model, int64_t, MlpConfig& config) {
  if (!model.has_mlp()) return false;
  const proto::MlpSpec& spec = model.mlp();
  config.vocabulary = spec.vocabulary();
  config.embedding = spec.embedding();
  config.hidden = spec.hidden();
  if (spec.has_layers()) config.layers = spec.layers();
  if (spec.has_init_std()) config.init_std = spec.init_std();
  return true;
}

void WriteSpec(const MlpConfig& config, proto::ModelSpec& model) {
  proto::MlpSpec& spec = *model.mutable_mlp();
  if (config.vocabulary > 0) spec.set_vocabulary(config.vocabulary);
  spec.set_embedding(config.embedding);
  spec.set_hidden(config.hidden);
  spec.set_layers(config.layers);
  spec.set_init_std(config.init_std);
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
