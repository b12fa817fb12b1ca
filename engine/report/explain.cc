#include "engine/report/explain.h"

#include "absl/strings/str_cat.h"
#include "engine/report/alternatives.h"
#include "engine/report/explain_sections.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Machine& machine) {
  SHALE_ASSIGN_OR_RETURN(const Alternatives alternatives, Alternatives::Create(job, plan, machine));
  SHALE_ASSIGN_OR_RETURN(const std::string micro_batches, ExplainMicroBatches(alternatives));
  SHALE_ASSIGN_OR_RETURN(const std::string headroom, ExplainHeadroom(alternatives));
  SHALE_ASSIGN_OR_RETURN(const std::string learning_rate, ExplainLearningRate(job));
  SHALE_ASSIGN_OR_RETURN(const std::string checkpointing, ExplainCheckpointing(alternatives));
  SHALE_ASSIGN_OR_RETURN(const std::string offload, ExplainOffload(alternatives));
  SHALE_ASSIGN_OR_RETURN(const std::string state_offload, ExplainStateOffload(alternatives));
  return absl::StrCat(ExplainWhereBytesGo(alternatives), ExplainAttention(alternatives), micro_batches,
                      ExplainOnePiece(alternatives), headroom, learning_rate, ExplainPacking(job), ExplainMix(job),
                      ExplainTargetWeights(job), ExplainState(alternatives), ExplainUpdate(alternatives), checkpointing,
                      offload, state_offload, ExplainNoSync(alternatives), ExplainStrategies(alternatives));
}

}  // namespace shale
