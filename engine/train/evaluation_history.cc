#include "engine/train/evaluation_history.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/numbers.h"

namespace shale {

void EvaluationHistory::GoOnAfter(const SavedEvaluations& saved) {
  if (saved.data == data_) saved_ = saved;
}

bool EvaluationHistory::Add(int64_t step, double loss) {
  saved_.data = data_;
  saved_.last_step = step;
  saved_.last_loss.reset();
  if (std::isfinite(loss)) saved_.last_loss = loss;
  if (!saved_.last_loss || (saved_.best_loss && loss >= *saved_.best_loss)) {
    ++saved_.since_best;
    return false;
  }
  saved_.best_loss = loss;
  saved_.best_step = step;
  saved_.since_best = 0;
  return true;
}

std::string EvaluationHistory::WhyItEnds() const {
  const std::string evaluations = Plural(saved_.since_best, "evaluation");
  if (!saved_.best_loss) return absl::StrCat("the evaluation loss was not finite in ", evaluations);
  return absl::StrFormat("the evaluation loss was not below %.4f, that of step %d, in %s", *saved_.best_loss,
                         saved_.best_step, evaluations);
}

}  // namespace shale
