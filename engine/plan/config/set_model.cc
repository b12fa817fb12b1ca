#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "kernels/check.h"

namespace shale {

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
