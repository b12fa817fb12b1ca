#include "engine/plan/config/model_spec.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "engine/plan/config/members.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

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

namespace {

constexpr size_t kLongestName = 128, kLongestDigest = 256;

}  // namespace

bool ReadSpec(const proto::ModelSpec& model, int64_t, CustomModel& config) {
  if (!model.has_custom()) return false;
  MemberReader reader(model.custom());
  VisitMembers(config, reader);
  return true;
}

void WriteSpec(const CustomModel& config, proto::ModelSpec& model) {
  MemberWriter writer(model.mutable_custom());
  VisitMembers(config, writer);
}

void CheckKindRules(const proto::ModelSpec&, const CustomModel& config, int64_t, SpecErrors& errors) {
  if (config == CustomModel()) {
    return errors.AddRule({"model"},
                          "missing; the program that runs this job brings its model: give it to the trainer, or to "
                          "what plans the job");
  }
  bool good = !config.name.empty() && config.name.size() <= kLongestName;
  for (const char c : config.name) good = good && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  if (!good) {
    errors.AddRule({"model.custom.name"},
                   absl::StrCat("found ", Quoted(config.name), "; allowed: 1 to ", kLongestName,
                                " letters, digits, '.', '_' and '-'; give the model such a name"));
  }
  if (config.digest.empty() || config.digest.size() > kLongestDigest) {
    errors.AddRule({"model.custom.digest"}, absl::StrCat("found ", config.digest.size(), " bytes; allowed: 1 to ",
                                                         kLongestDigest, "; give the model such a digest"));
  }
}

// The function alone knows the sizes of its tensors, and the builder checks them.
std::vector<SizeProduct> ActivationSizes(const CustomModel&, const StepSizes&) { return {}; }

absl::Status SetModel(const CustomModel& model, Job& job) {
  Job changed = job;
  changed.model = model;
  if (const auto* recorded = std::get_if<CustomModel>(&job.model); recorded != nullptr && *recorded != CustomModel()) {
    if (recorded->name != model.name || recorded->digest != model.digest) {
      return absl::FailedPreconditionError(absl::StrCat("the job was recorded with custom model ", recorded->name, " (",
                                                        recorded->digest, "), and the program brings ", model.name,
                                                        " (", model.digest,
                                                        "); bring the recorded model, or begin a new run"));
    }
    if (model.vocabulary == 0) std::get<CustomModel>(changed.model).vocabulary = recorded->vocabulary;
  } else if (recorded == nullptr && job.model != ModelConfig()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job describes a model itself (model.", KindName(job.model),
                     "), and the program brings custom "
                     "model ",
                     model.name, "; leave `model` out of the job, or the custom model out of the program"));
  }
  SHALE_RETURN_IF_ERROR(ValidateJob(changed));
  job = std::move(changed);
  return absl::OkStatus();
}

}  // namespace shale
