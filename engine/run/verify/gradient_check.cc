#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/run/verify/checks.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {
namespace {

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// The relative distance that rounding in fp32 may give a gradient: a thousand roundings.
constexpr double kGradientRounding = 1e-4;

// The slope of the loss along a direction of norm 1.
struct Slope {
  double of_gradient = 0;     // What the gradient says.
  double of_differences = 0;  // What the loss says.
  double tolerance = 0;
  double scale = 0;  // The slope that a gradient of this norm has along such a direction.

  double error() const { return std::abs(of_gradient - of_differences); }
  bool holds() const { return error() <= tolerance; }
  // Returns whether a gradient that is wrong by a quarter would be found.
  bool tells() const { return tolerance <= scale / 4; }
};

class GradientCheck {
 public:
  GradientCheck(TrialRun& trial, const VerifiedJob& verified) : trial_(trial), random_(verified.job.runtime.seed) {}

  // Adds noise to the weights, runs the step, and measures the loss.
  absl::Status Begin(const RecordedSamples& samples, TargetWeights weights);
  // Returns the slopes along the directions of a parameter.
  absl::StatusOr<std::vector<Slope>> Check(const Parameter& parameter);

 private:
  using Values = std::vector<float>;
  // Returns a direction of norm 1 with random signs.
  Values RandomDirection(size_t elements) {
    Values direction(elements);
    const float element = 1 / std::sqrt(static_cast<float>(elements));
    for (float& d : direction) d = random_() & 1 ? element : -element;
    return direction;
  }
  // Returns the loss where a parameter lies `distance` from `weight` along a direction. Sets `moved` to its values
  // there.
  absl::StatusOr<double> LossAt(const Parameter& parameter, const Values& weight, const Values& direction,
                                double distance, Values& moved);
  // Returns the slope of the differences between both sides of `weight`, and of the gradient along the same way.
  struct Difference {
    double of_loss = 0, of_gradient = 0;
  };
  absl::StatusOr<Difference> DifferenceAt(const Parameter& parameter, const Values& weight, const Values& gradient,
                                          const Values& direction, double distance);
  absl::StatusOr<Slope> SlopeAt(const Parameter& parameter, const Values& weight, const Values& gradient,
                                const Values& direction, double distance);
  absl::StatusOr<Slope> SlopeAlong(const Parameter& parameter, const Values& weight, const Values& gradient,
                                   const Values& direction);

  // Returns how far the losses of two evaluations may lie apart by rounding: 16 roundings of fp32.
  double rounding() const { return 0x1p-20 * magnitude_; }

  TrialRun& trial_;
  std::mt19937_64 random_;
  double magnitude_ = 0;  // What the rounding of the loss is relative to.
};

absl::Status GradientCheck::Begin(const RecordedSamples& samples, TargetWeights weights) {
  Trainer& trainer = trial_.trainer();
  std::normal_distribution<float> normal;
  for (const Parameter& parameter : trainer.state().parameters()) {
    SHALE_ASSIGN_OR_RETURN(Values values, ReadWeights(trainer, parameter));
    const double rms = Norm(values) / std::sqrt(static_cast<double>(values.size()));
    const float noise = static_cast<float>(0.1 * std::max(rms, 0.02));
    for (float& v : values) v += noise * normal(random_);
    SHALE_RETURN_IF_ERROR(trainer.state().WriteParameter(parameter.name, values));
  }
  SHALE_RETURN_IF_ERROR(trial_.Run(/*steps=*/1, TrialRun::Keep::kLosses).status());
  trial_.evaluated().SetEdit([](int64_t, const SampleParts& parts) {
    for (float& w : parts.weights) w = std::abs(w);
  });
  SHALE_ASSIGN_OR_RETURN(const double loss, trial_.Evaluate());
  trial_.evaluated().SetEdit({});

  // A loss of classes is a difference of logits, which are rounded even where the loss is small. Those of a model that
  // has learned something are above 1. With OVER_TOKENS, weights scale the loss of each target.
  double unit = 1;
  if (weights == TargetWeights::kOverTokens) {
    double total = 0, count = 0;
    for (const RecordedSample& sample : samples.samples) {
      for (const float w : sample.weights) total += std::abs(w);
      count += static_cast<double>(sample.weights.size());
    }
    unit = count > 0 ? total / count : 1;
  }
  magnitude_ = std::max(std::abs(loss), samples.description.target_values > 0 ? 0 : unit);
  return absl::OkStatus();
}

absl::StatusOr<double> GradientCheck::LossAt(const Parameter& parameter, const Values& weight, const Values& direction,
                                             double distance, Values& moved) {
  moved.resize(weight.size());
  for (size_t i = 0; i < weight.size(); ++i) moved[i] = static_cast<float>(weight[i] + distance * direction[i]);
  SHALE_RETURN_IF_ERROR(trial_.trainer().state().WriteParameter(parameter.name, moved));
  return trial_.Evaluate();
}

absl::StatusOr<GradientCheck::Difference> GradientCheck::DifferenceAt(const Parameter& parameter, const Values& weight,
                                                                      const Values& gradient, const Values& direction,
                                                                      double distance) {
  Values up, down;
  SHALE_ASSIGN_OR_RETURN(const double loss_up, LossAt(parameter, weight, direction, distance, up));
  SHALE_ASSIGN_OR_RETURN(const double loss_down, LossAt(parameter, weight, direction, -distance, down));
  double way = 0;  // Weights are rounded, so the way is not exactly twice the distance along the direction.
  for (size_t i = 0; i < up.size(); ++i) {
    way += static_cast<double>(gradient[i]) * (static_cast<double>(up[i]) - down[i]);
  }
  return Difference{.of_loss = (loss_up - loss_down) / (2 * distance), .of_gradient = way / (2 * distance)};
}

absl::StatusOr<Slope> GradientCheck::SlopeAt(const Parameter& parameter, const Values& weight, const Values& gradient,
                                             const Values& direction, double distance) {
  SHALE_ASSIGN_OR_RETURN(const Difference far, DifferenceAt(parameter, weight, gradient, direction, distance));
  SHALE_ASSIGN_OR_RETURN(const Difference near, DifferenceAt(parameter, weight, gradient, direction, distance / 2));
  // Extrapolates to distance 0: the error of a central difference grows with the square of the distance.
  const auto extrapolate = [](double far_slope, double near_slope) { return (4 * near_slope - far_slope) / 3; };
  Slope slope = {.of_gradient = extrapolate(far.of_gradient, near.of_gradient),
                 .of_differences = extrapolate(far.of_loss, near.of_loss)};
  const double root = std::sqrt(static_cast<double>(weight.size()));
  slope.scale = std::max({std::abs(slope.of_gradient), std::abs(slope.of_differences), Norm(gradient) / root});
  slope.tolerance = std::abs((far.of_loss - far.of_gradient) - (near.of_loss - near.of_gradient)) +
                    4 * rounding() / distance + kGradientRounding * slope.scale;
  return slope;
}

absl::StatusOr<Slope> GradientCheck::SlopeAlong(const Parameter& parameter, const Values& weight,
                                                const Values& gradient, const Values& direction) {
  const double root = std::sqrt(static_cast<double>(weight.size()));
  const double expected = std::max(std::abs(Dot(gradient, direction)), Norm(gradient) / root);
  // So far that the loss changes by a thousandth, but not by more than a fifth of the weights.
  const double farthest = 0.2 * root * std::max(Norm(weight) / root, 0.05);
  double distance = expected > 0 ? std::min(farthest, 1e-3 * magnitude_ / (2 * expected)) : farthest;
  std::optional<Slope> best;
  for (int round = 0, failed = 0; round < 4; ++round, distance /= 4) {
    SHALE_ASSIGN_OR_RETURN(const Slope slope, SlopeAt(parameter, weight, gradient, direction, distance));
    if (!slope.holds()) {
      if (++failed == 2) return slope;
      continue;
    }
    if (!best || slope.tolerance < best->tolerance) best = slope;
    const bool rounding_rules = 8 * rounding() / distance >= slope.tolerance;
    if (slope.tolerance <= 0.02 * slope.scale || rounding_rules) break;
  }
  return *best;  // Of four rounds with fewer than two failures, one holds.
}

absl::StatusOr<std::vector<Slope>> GradientCheck::Check(const Parameter& parameter) {
  Trainer& trainer = trial_.trainer();
  SHALE_ASSIGN_OR_RETURN(const Values weight, ReadWeights(trainer, parameter));
  SHALE_ASSIGN_OR_RETURN(const Values gradient, ReadGradients(trainer, parameter));
  std::vector<Values> directions = {RandomDirection(weight.size()), gradient};
  const double norm = Norm(gradient);
  if (norm > 0) {
    for (float& d : directions[1]) d = static_cast<float>(d / norm);
  } else {
    directions[1] = RandomDirection(weight.size());
  }
  std::vector<Slope> slopes;
  for (const Values& direction : directions) {
    SHALE_ASSIGN_OR_RETURN(slopes.emplace_back(), SlopeAlong(parameter, weight, gradient, direction));
  }
  SHALE_RETURN_IF_ERROR(trainer.state().WriteParameter(parameter.name, weight));
  return slopes;
}

// Returns the parameters that train in the order in which they are checked: those of the first group and of the last,
// then those of the others.
std::vector<Parameter> InOrderOfCheck(const ModelGraph& graph) {
  std::vector<GroupId> groups;
  for (GroupId first = 0, last = static_cast<GroupId>(graph.groups.size()) - 1; first <= last; ++first, --last) {
    groups.push_back(first);
    if (last != first) groups.push_back(last);
  }
  std::vector<Parameter> parameters;
  for (const GroupId group : groups) {
    if (graph.groups[group].frozen) continue;
    for (const ParameterId id : graph.groups[group].parameters) parameters.push_back(graph.parameters[id]);
  }
  return parameters;
}

absl::StatusOr<VerifyRow> Check(const VerifiedJob& verified, TrialRun& trial, double seconds, VerifyRow row) {
  const auto start = std::chrono::steady_clock::now();
  const ModelGraph& graph = trial.trainer().plan().train.graph;
  GradientCheck check(trial, verified);
  SHALE_RETURN_IF_ERROR(check.Begin(verified.context.samples, verified.job.data.target_weights));
  std::set<std::string> right, wrong;
  std::string numbers;  // Of the first wrong slopes.
  size_t checked = 0, telling = 0;
  double worst = -1;
  const std::vector<Parameter> parameters = InOrderOfCheck(graph);
  for (const Parameter& parameter : parameters) {
    if (checked > 0 && std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds) break;
    SHALE_ASSIGN_OR_RETURN(const std::vector<Slope> slopes, check.Check(parameter));
    ++checked;
    telling += std::any_of(slopes.begin(), slopes.end(), [](const Slope& slope) { return slope.tells(); });
    for (const Slope& slope : slopes) {
      const double share = slope.error() / slope.tolerance;
      if (share > worst && slope.scale > 0) {
        worst = share;
        row.difference = slope.error() / slope.scale;
        row.tolerance = slope.tolerance / slope.scale;
      }
      if (slope.holds() || !wrong.insert(parameter.name).second || wrong.size() > 3) continue;
      absl::StrAppend(&numbers, numbers.empty() ? "" : "; ",
                      absl::StrFormat("along a direction of %s the slope of the loss is %.4g, give or take %.1g, and "
                                      "the gradient says %.4g",
                                      parameter.name, slope.of_differences, slope.tolerance, slope.of_gradient));
    }
    if (!wrong.contains(parameter.name)) right.insert(parameter.name);
  }
  if (wrong.empty()) {
    row.remark = absl::StrCat(
        checked, " of ", Plural(std::ssize(parameters), "parameter"),
        checked < parameters.size() ? " were checked; time was too short for the others" : " were checked");
    if (telling < checked) {
      absl::StrAppend(&row.remark, "; ", checked - telling,
                      " of them have too small a gradient for the rounding of the loss to tell");
    }
    return row;
  }
  row.outcome = VerifyOutcome::kFails;
  constexpr size_t kMostNames = 12;
  std::vector<std::string> names(wrong.begin(), wrong.end());
  if (names.size() > kMostNames) {
    names.resize(kMostNames);
    names.push_back(absl::StrCat(wrong.size() - kMostNames, " others"));
  }
  row.remark = absl::StrCat(WhereGradientsGoWrong(graph, right, wrong), ". Wrong are the gradients of ",
                            absl::StrJoin(names, ", "), "; right are those of ", Plural(right.size(), "parameter"),
                            ". ", numbers);
  return row;
}

}  // namespace

VerifyRow CheckGradients(VerifiedJob& verified, double seconds) {
  const VerifyRow row = {.check = "gradients in fp32", .against = "differences of the loss"};
  const absl::StatusOr<std::unique_ptr<TrialRun>> trial =
      TrialRun::Start(verified.context, "fp32", GradientJob(verified.job, verified.size));
  if (!trial.ok()) return NotRun(row, trial.status());
  absl::StatusOr<VerifyRow> result = Check(verified, **trial, seconds, row);
  return result.ok() ? *std::move(result) : Failed(row, result.status());
}

}  // namespace shale
