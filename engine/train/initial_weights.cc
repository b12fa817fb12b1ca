#include "engine/train/initial_weights.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/hugging_face/config.h"
#include "engine/hugging_face/weights.h"
#include "engine/state/initial_values.h"
#include "engine/train/resume.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::Status ReadHfWeights(const Job& job, LocalState& state) {
  SHALE_ASSIGN_OR_RETURN(const DecoderConfig config, ReadHfConfig(job.hf_folder));
  if (const std::string difference = FirstDifference(config, job.model); !difference.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("model.hf_folder: ", job.hf_folder,
                                                   " holds a model that differs from the job's: ", difference,
                                                   "; leave model.decoder out to take its shape"));
  }
  SHALE_ASSIGN_OR_RETURN(const HfWeights weights, HfWeights::Open(job.hf_folder, config));
  const auto read = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    return weights.Read(parameter.name, begin, values);
  };
  return state.Fill(read);
}

}  // namespace

absl::Status SetInitialWeights(const Job& job, LocalState& state) {
  if (!job.hf_folder.empty()) return ReadHfWeights(job, state);
  const auto initial = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    FillInitialValues(parameter, job.runtime.seed, begin, values, static_cast<int>(job.runtime.threads_per_rank));
    return absl::OkStatus();
  };
  return state.Fill(initial);
}

}  // namespace shale
