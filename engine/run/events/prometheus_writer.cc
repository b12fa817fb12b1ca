#include <sys/stat.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/api/events.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// A double as Prometheus reads it. https://prometheus.io/docs/instrumenting/exposition_formats/
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

class PrometheusWriter : public EventWriter {
 public:
  explicit PrometheusWriter(std::string path) : path_(std::move(path)) {}

  absl::Status Write(const RunEvent& event) override {
    std::visit([&](const auto& what) { Keep(what); }, event.what);
    return absl::OkStatus();
  }

  absl::Status Flush() override { return WriteFileDurably(path_, Text()); }

 private:
  template <class Other>
  void Keep(const Other&) {}
  void Keep(const PlanReady& plan) {
    plan_ = plan;
    run_ = absl::StrReplaceAll(plan.name, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
  }
  void Keep(const StepReport& report) {
    step_ = report;
    skipped_ += report.updated ? 0 : 1;
  }
  void Keep(const EvaluationReport& report) { evaluation_ = report; }
  void Keep(const CheckpointReport& report) {
    if (report.status.ok()) checkpoint_step_ = report.step;
    warnings_ += report.status.ok() ? 0 : 1;
  }
  void Keep(const Warning&) { ++warnings_; }
  void Keep(const Failure&) { failed_ = ended_ = true; }
  void Keep(const Finished&) { ended_ = true; }

  std::string Text() const {
    std::string text;
    const auto add = [&](const char* name, const char* type, const char* help, double value) {
      absl::StrAppend(&text, "# HELP shale_", name, " ", help, "\n# TYPE shale_", name, " ", type, "\n");
      absl::StrAppend(&text, "shale_", name, "{run=\"", run_, "\"} ", Number(value), "\n");
    };
    const auto count = [](int64_t value) { return static_cast<double>(value); };
    if (plan_) {
      add("steps", "gauge", "Steps of the job.", count(plan_->total_steps));
      add("planned_bytes", "gauge", "Device memory of one rank, as planned.", count(plan_->arena_bytes));
    }
    if (step_) {
      add("step", "gauge", "Steps done.", count(step_->step));
      add("tokens_total", "counter", "Target tokens so far.", count(step_->tokens));
      add("loss", "gauge", "Loss of the last step.", step_->loss);
      add("gradient_norm", "gauge", "Norm of the last gradient, before clipping.", step_->gradient_norm);
      add("learning_rate", "gauge", "Learning rate of the last step.", step_->learning_rate);
      if (step_->loss_scale > 0) add("loss_scale", "gauge", "Loss scale of the next step.", step_->loss_scale);
      add("step_seconds", "gauge", "Time of the last step.", step_->seconds);
      if (step_->predicted_seconds > 0) {
        add("predicted_step_seconds", "gauge", "Time that a step was predicted to take.", step_->predicted_seconds);
      }
      add("tokens_per_second", "gauge", "Speed of the last step.", step_->tokens_per_second);
      add("mfu", "gauge", "Fraction of peak FLOP/s in the last step; 0: not known.", step_->mfu);
      add("peak_bytes", "gauge", "Device memory of one rank, as measured.", count(step_->peak_bytes_measured));
      add("skipped_steps_total", "counter", "Steps of this process that did not update the weights.", count(skipped_));
      AddMetrics(step_->metrics, text);
    }
    if (evaluation_) {
      add("evaluation_loss", "gauge", "Loss of the last evaluation.", evaluation_->loss);
      AddSources(evaluation_->sources, text);
    }
    if (checkpoint_step_) add("checkpoint_step", "gauge", "Step of the last checkpoint.", count(*checkpoint_step_));
    add("warnings_total", "counter", "Warnings of this process.", count(warnings_));
    add("ended", "gauge", "1 if the run has ended.", ended_ ? 1 : 0);
    add("failed", "gauge", "1 if the run has ended with an error.", failed_ ? 1 : 0);
    return text;
  }

  // Names of metrics may hold what names of Prometheus may not, so they become values of a label.
  void AddMetrics(const std::vector<UserMetric>& metrics, std::string& text) const {
    if (metrics.empty()) return;
    absl::StrAppend(&text, "# HELP shale_metric Values that the program added to the last step.\n",
                    "# TYPE shale_metric gauge\n");
    for (const UserMetric& metric : metrics) {
      absl::StrAppend(&text, "shale_metric{run=\"", run_, "\",name=\"", metric.name, "\"} ", Number(metric.value),
                      "\n");
    }
  }

  void AddSources(const std::vector<SourceLoss>& sources, std::string& text) const {
    if (sources.empty()) return;
    absl::StrAppend(&text, "# HELP shale_evaluation_source_loss Loss of the last evaluation on each source.\n",
                    "# TYPE shale_evaluation_source_loss gauge\n");
    for (const SourceLoss& source : sources) {
      absl::StrAppend(&text, "shale_evaluation_source_loss{run=\"", run_, "\",source=\"", source.name, "\"} ",
                      Number(source.loss), "\n");
    }
  }

  const std::string path_;
  std::string run_;  // The name of the job, quoted.
  std::optional<PlanReady> plan_;
  std::optional<StepReport> step_;
  std::optional<EvaluationReport> evaluation_;
  std::optional<int64_t> checkpoint_step_;
  int64_t skipped_ = 0, warnings_ = 0;
  bool ended_ = false, failed_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EventWriter>> WritePrometheus(const std::string& path) {
  SHALE_RETURN_IF_ERROR(MakeFoldersOf(path));
  return std::make_unique<PrometheusWriter>(path);
}

}  // namespace shale
