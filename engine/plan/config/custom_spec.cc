// Gives a job the custom model of a program, and reads, writes and checks that in the job that a run recorded.
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/plan/config/members.h"
#include "engine/plan/config/model_spec.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
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
                                                        " (", model.digest, ")"));
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
