#include "tools/examples/service/job_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace service {

absl::StatusOr<std::unique_ptr<JobLog>> JobLog::Open(const std::string& path, std::function<void()> on_event) {
  std::unique_ptr<JobLog> log(new JobLog(path, std::move(on_event)));
  SHALE_ASSIGN_OR_RETURN(log->writer_, shale::WriteJsonFile(path));
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = event.find("step"), loss = event.find("loss"), total = event.find("total_steps");
    if (total != event.end() && total->is_number_integer()) log->total_steps_ = *total;
    // Only steps have both.
    if (step == event.end() || loss == event.end() || !step->is_number_integer() || !loss->is_number()) continue;
    log->Add({.step = *step, .loss = *loss});
  }
  return log;
}

void JobLog::Take(const shale::RunEvent& event) {
  if (const absl::Status written = writer_->Write(event); !written.ok()) {
    std::fprintf(stderr, "service: %s\n", std::string(written.message()).c_str());
  }
  if (const auto* step = std::get_if<shale::StepReport>(&event.what)) Add({.step = step->step, .loss = step->loss});
  if (const auto* plan = std::get_if<shale::PlanReady>(&event.what)) {
    const std::lock_guard lock(mutex_);
    total_steps_ = plan->total_steps;
  }
  on_event_();
}

void JobLog::Add(LossPoint point) {
  if (!std::isfinite(point.loss)) return;
  const std::lock_guard lock(mutex_);
  // A run that goes on from a checkpoint repeats the steps after it.
  while (!curve_.empty() && curve_.back().step >= point.step) curve_.pop_back();
  curve_.push_back(point);
}

std::vector<LossPoint> JobLog::Curve(size_t most) const {
  const std::lock_guard lock(mutex_);
  const size_t stride = std::max<size_t>(1, (curve_.size() + most - 1) / most);
  std::vector<LossPoint> points;
  for (size_t i = 0; i < curve_.size(); i += stride) points.push_back(curve_[i]);
  if (!curve_.empty() && points.back().step != curve_.back().step) points.push_back(curve_.back());
  return points;
}

int64_t JobLog::total_steps() const {
  const std::lock_guard lock(mutex_);
  return total_steps_;
}

absl::StatusOr<std::string> JobLog::ReadLines(int64_t position) const {
  constexpr int64_t kMostBytes = int64_t{1} << 16;
  std::ifstream file(path_, std::ios::binary);
  // Also reads the byte before the position, which must end a line.
  const int64_t begin = std::max<int64_t>(0, position - 1);
  file.seekg(begin);
  std::string bytes(kMostBytes, '\0');
  file.read(bytes.data(), kMostBytes);
  bytes.resize(file.gcount());
  if (position < 0 || (position > 0 && bytes.substr(0, 1) != "\n")) {
    return absl::InvalidArgumentError(
        absl::StrCat("position: found ", position, ", where no event ends; give 0, or a position that Watch returned"));
  }
  bytes.erase(0, position - begin);
  bytes.resize(bytes.rfind('\n') + 1);  // rfind returns npos if there is no line, and npos + 1 is 0.
  return bytes;
}

}  // namespace service
