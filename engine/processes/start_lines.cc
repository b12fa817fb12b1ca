#include "engine/processes/start_lines.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

absl::string_view LineOf(StartStage stage) {
  switch (stage) {
    case StartStage::kAllocating: return "allocating memory, and trying what the run will use of libraries";
    case StartStage::kLoading: return "setting the initial weights";
    case StartStage::kRestoring: return "reading the checkpoint";
    case StartStage::kFirstStep: return "";
  }
  return "";
}

}  // namespace

void StartLines::Take(const RunEvent& event) {
  if (const auto* plan = std::get_if<PlanReady>(&event.what)) {
    large_ = plan->arena_bytes >= kLargeArenaBytes;
    if (large_) {
      print_(absl::StrCat("planned: ", WithCommas(plan->parameters), " parameters, ", FormatBytes(plan->arena_bytes),
                          " a rank"));
    }
  } else if (const auto* progress = std::get_if<Progress>(&event.what); progress != nullptr && large_) {
    if (const absl::string_view line = LineOf(progress->stage); !line.empty()) print_(line);
  }
  next_.Take(event);
}

}  // namespace shale
