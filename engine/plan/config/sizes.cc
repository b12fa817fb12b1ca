// Checks products of sizes, in 128 bits. The ranges of single fields keep each product of up to four factors below
// 2^127. CheckProduct stops multiplying as soon as the product exceeds the limit, so that longer products fit too.
#include <algorithm>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/plan/config/job_from_spec.h"
#include "engine/plan/config/model_spec.h"

namespace shale {
namespace {

using Wide = unsigned __int128;

constexpr Wide kLimit = Wide{1} << 62;

// Reports products of sizes. A factor that was reported once is the likely cause of all products that have it, so that
// these are not reported.
class SizeErrors {
 public:
  explicit SizeErrors(SpecErrors* errors) : errors_(*errors) {}

  void AddRule(const std::vector<std::string>& paths, absl::string_view message) {
    for (const std::string& path : paths) {
      if (reported_.count(path) > 0) return;
    }
    errors_.AddRule(paths, message);
    reported_.insert(errors_.PlaceOfRule(paths));
  }

 private:
  SpecErrors& errors_;
  std::set<std::string> reported_;
};

// Reports the product of `factors` if it is above the limit. SpecErrors::AddRule decides at which field.
void CheckProduct(absl::string_view what, const std::vector<SizeFactor>& factors, SizeErrors& errors) {
  Wide product = 1;
  double shown = 1;
  std::vector<std::string> paths, names;
  for (const SizeFactor& factor : factors) {
    if (product <= kLimit) product *= static_cast<Wide>(factor.size);
    shown *= static_cast<double>(factor.size);
    paths.push_back(factor.path);
    names.push_back(absl::StrCat(factor.path, " (", factor.size, ")"));
  }
  if (product <= kLimit) return;
  errors.AddRule(paths, absl::StrCat(what, " are ", absl::StrJoin(names, " x "), " = ", absl::StrFormat("%.2g", shown),
                                     ", above 2^62; make them smaller"));
}

void CheckActivations(const Job& job, SizeErrors& errors) {
  const StepSizes step = {
      .micro_batch = {"batch.micro_batch", job.batch.micro_batch},
      .sequence_length = {"batch.sequence_length", job.batch.sequence_length},
      .accumulation_steps = {"accumulation steps", AccumulationSteps(job.batch, job.sharding.ranks)},
  };
  const std::vector<SizeProduct> products =
      std::visit([&](const auto& model) { return ActivationSizes(model, step); }, job.model);
  for (const auto& [what, factors] : products) CheckProduct(what, factors, errors);
}

}  // namespace

void CheckSizes(const Job& job, SpecErrors* all_errors) {
  SizeErrors errors(all_errors);
  // The weight, gradient, master and two moments of a parameter take at most 20 bytes.
  constexpr int kBytesPerParameter = 20;
  const Wide parameters = ParameterCount(job.model, job.batch.sequence_length);
  if (parameters > kLimit / kBytesPerParameter) {
    std::vector<std::string> paths;  // Fields of all kinds of models. Those that this kind lacks were never given.
    for (const char* size : {"width", "embedding", "hidden", "heads", "head_width", "layers", "vocabulary"}) {
      paths.push_back(absl::StrCat("model.", KindName(job.model), ".", size));
    }
    errors.AddRule(paths, absl::StrCat("the model has ", absl::StrFormat("%.2g", static_cast<double>(parameters)),
                                       " parameters, whose state is above 2^62 bytes; make its sizes smaller"));
  }
  CheckActivations(job, errors);
  const SizeFactor length = {"batch.sequence_length", job.batch.sequence_length};
  const SizeFactor global = {"batch.global_batch", job.batch.global_batch};
  CheckProduct("the tokens of the run",
               {global, length, {"lr_schedule.steps", std::max<int64_t>(1, job.lr_schedule.steps)}}, errors);
  CheckProduct(
      "the logits of a chunk",
      {{"memory.loss_chunk_tokens", LossChunkTokens(job)}, {"vocabulary", std::max<int64_t>(1, Vocabulary(job.model))}},
      errors);
}

}  // namespace shale
