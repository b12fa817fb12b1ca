#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/api/trainer_options.h"
#include "engine/api/trainer_parts.h"
#include "engine/io/file.h"
#include "engine/runtime/local_ranks.h"
#include "engine/runtime/trace.h"
#include "kernels/check.h"
#include "sharding/comm/control_plane.h"

namespace shale {

TrainerTrace::TrainerTrace(const TraceOptions& options, double peak_flops, ControlPlane& control)
    : options_(std::make_unique<const TraceOptions>(options)),
      peak_flops_(peak_flops),
      control_(control),
      trace_(std::make_unique<StepTrace>()),
      left_(options.steps) {}

TrainerTrace::~TrainerTrace() = default;

bool TrainerTrace::empty() const { return trace_->empty(); }

std::string TrainerTrace::Describe() const {
  if (options_->path.empty()) return "none";
  return absl::StrCat("one of ", options_->steps, " steps from step ", options_->first_step);
}

std::string TrainerTrace::Table() const {
  return trace_->Table({.bytes_per_second = options_->bytes_per_second, .flops_per_second = peak_flops_});
}

absl::Status TrainerTrace::Write() const {
  if (empty()) return absl::FailedPreconditionError("no step was traced");
  SHALE_RETURN_IF_ERROR(WriteFileDurably(options_->path, trace_->ChromeJson()));
  const std::string table = Table();
  return table.empty() ? absl::OkStatus() : WriteFileDurably(options_->path + ".txt", table);
}

absl::StatusOr<bool> TrainerTrace::BeginStep(int64_t number) {
  const int64_t place = number - options_->first_step;
  if (options_->path.empty() || place < 0 || place >= options_->steps) return false;
  if (empty() && control_.processes() > 1) SHALE_RETURN_IF_ERROR(AgreeOnOrigin());
  return true;
}

void TrainerTrace::Add(const StepProgram& program, int64_t step, LocalRanks& ranks, const LocalProgram& train) {
  for (int local = 0; local < ranks.size(); ++local)
    trace_->Add(program, step, ranks.number(local), train.times(local));
  --left_;
}

void TrainerTrace::EndStep() {
  if (left_ != 0 || control_.processes() > 1) return;
  left_ = -1;
  Write().IgnoreError();  // Run writes it once more, and reports errors.
}

absl::Status TrainerTrace::AgreeOnOrigin() {
  constexpr int64_t kMostBytes = 256;
  constexpr char kBoot[] = "/proc/sys/kernel/random/boot_id";
  // Processes on one host have one steady clock. Others hear of the time of process 0 about as late as the network is.
  const auto now = [] { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const std::string host = ReadFile(kBoot, kMostBytes).value_or(absl::StrCat("process ", control_.process()));
  SHALE_ASSIGN_OR_RETURN(const std::string message,
                         control_.Broadcast(ControlChannel::kSteps, absl::StrCat(now(), " ", host)));
  int64_t origin = now();
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(message, absl::MaxSplits(' ', 1));
  if (parts.second == host && !absl::SimpleAtoi(parts.first, &origin)) {
    return absl::InternalError("process 0 sent no time");
  }
  trace_->SetOrigin(origin);
  return absl::OkStatus();
}

}  // namespace shale
