// EvaluationHistory: which evaluation of a run was the best, and whether the run should go on.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/checkpoint/manifest.h"

namespace shale {

// Used by one thread. With several processes, each has one, and all hear of the same losses.
class EvaluationHistory {
 public:
  // `data` tells apart evaluations whose losses cannot be compared. `patience` is checkpoint.patience.
  EvaluationHistory(std::string data, int64_t patience) : data_(std::move(data)), patience_(patience) {}

  // Goes on with the history of a checkpoint, unless that is of other data.
  void GoOnAfter(const SavedEvaluations& saved);
  // Adds the evaluation after `step` steps. Returns whether its loss is the lowest so far. A loss that is not finite
  // never is.
  bool Add(int64_t step, double loss);

  // Returns whether there was an evaluation after `step` steps.
  bool Has(int64_t step) const { return saved_.last_step == step; }
  // Returns whether as many evaluations in a row as the patience allows had no lower loss.
  bool out_of_patience() const { return patience_ > 0 && saved_.since_best >= patience_; }
  // Returns why the run ends: "the evaluation loss was not below 2.3112, that of step 400, in 3 evaluations".
  std::string WhyItEnds() const;
  // Returns what a checkpoint records.
  const SavedEvaluations& saved() const { return saved_; }

 private:
  const std::string data_;
  const int64_t patience_;
  SavedEvaluations saved_;
};

}  // namespace shale
