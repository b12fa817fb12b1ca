#include "engine/train/run_health.h"

#include <algorithm>

#include "engine/io/file.h"
#include "engine/train/failure_report.h"
#include "kernels/check.h"

namespace shale {

void RunHealth::TellFailure(const absl::Status& status, const char* culprit) {
  if (!std::exchange(told_, true)) Tell(Failure{.status = status, .culprit = culprit, .step = steps_.done});
  // An error that all have found alike leaves no question who waited for whom. A report that cannot be written must not
  // hide why the run failed.
  if (damaged_ && !IsAgreed(status)) Report(status).IgnoreError();
}

absl::Status RunHealth::Report(const absl::Status& why) {
  if (folder_.empty() || reported_.exchange(true)) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(MakeFolders(folder_));
  const int64_t done = steps_.done, begun = steps_.begun;
  return WriteFileDurably(FailureReportPath(folder_, control_.process()),
                          FailureReport(*ranks_, control_.process(),
                                        {.step = std::max(begun, done), .done = done, .saved = steps_.saved}, why));
}

}  // namespace shale
