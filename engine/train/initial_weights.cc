#include "engine/train/initial_weights.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/config/base.h"
#include "engine/hugging_face/adapter_config.h"
#include "engine/hugging_face/config.h"
#include "engine/hugging_face/weights.h"
#include "engine/state/initial_values.h"
#include "engine/train/resume.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the weights of job.adapter_folder, or null if the job has none.
absl::StatusOr<std::unique_ptr<HfWeights>> OpenAdapter(const Job& job) {
  if (job.adapter_folder.empty()) return nullptr;
  const auto& model = std::get<DecoderConfig>(job.model);
  SHALE_ASSIGN_OR_RETURN(AdapterConfig found, ReadHfAdapterConfig(job.adapter_folder));
  found.targets = model.adapter->targets;
  if (found != *model.adapter) {
    const auto text = [](const AdapterConfig& a) {
      return absl::StrCat("rank ", a.rank, ", alpha ", a.alpha, a.rank_stabilized ? ", rank_stabilized" : "");
    };
    return absl::InvalidArgumentError(absl::StrCat("model.adapter.folder: ", job.adapter_folder, " holds adapters of ",
                                                   text(found), ", the job has ", text(*model.adapter),
                                                   "; give those of the folder"));
  }
  SHALE_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::OpenAdapter(job.adapter_folder, model));
  SHALE_RETURN_IF_ERROR(CheckHfAdapterModules(job.adapter_folder, model));
  return std::make_unique<HfWeights>(std::move(weights));
}

// Returns the weights of job.hf_folder, or null if the job has none.
absl::StatusOr<std::unique_ptr<HfWeights>> OpenModel(const Job& job) {
  if (job.hf_folder.empty()) return nullptr;
  SHALE_ASSIGN_OR_RETURN(const DecoderConfig config, ReadHfConfig(job.hf_folder));
  auto base = std::get<DecoderConfig>(job.model);
  base.adapter.reset();
  if (const std::string difference = FirstDifference(config, base); !difference.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("model.hf_folder: ", job.hf_folder,
                                                   " holds a model that differs from the job's: ", difference,
                                                   "; leave model.decoder out to take its shape"));
  }
  SHALE_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::Open(job.hf_folder, config));
  return std::make_unique<HfWeights>(std::move(weights));
}

}  // namespace

absl::Status SetInitialWeights(const Job& job, LocalState& state, uint64_t* base_digest) {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<HfWeights> model, OpenModel(job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<HfWeights> adapter, OpenAdapter(job));
  const auto read = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    for (const HfWeights* weights : {model.get(), adapter.get()}) {
      if (weights != nullptr && weights->Has(parameter.name)) return weights->Read(parameter.name, begin, values);
    }
    FillInitialValues(parameter, job.runtime.seed, begin, values);
    return absl::OkStatus();
  };
  return state.Fill(read, {.threads = FillThreads(job), .digest_of_frozen = base_digest});
}

absl::Status SetBase(const Job& job, LocalState& state, uint64_t& digest) {
  SHALE_CHECK(HasBase(job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<HfWeights> model, OpenModel(job));
  const auto read = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    return model->Read(parameter.name, begin, values);
  };
  return state.Fill(read, {.frozen_only = true, .threads = FillThreads(job), .digest_of_frozen = &digest});
}

}  // namespace shale
