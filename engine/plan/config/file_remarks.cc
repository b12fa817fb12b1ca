#include "engine/plan/config/file_remarks.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/config_parts.h"

namespace shale {
namespace {

// Appends what is to be said of the dropout that a file asks for.
void Remark(const std::string& folder, absl::string_view file, const absl::StatusOr<std::string>& dropout,
            std::vector<std::string>& remarks) {
  if (!dropout.ok() || dropout->empty()) return;
  remarks.push_back(
      absl::StrCat(folder, "/", file, " asks for dropout in training (", *dropout, "); Shale trains without"));
}

}  // namespace

std::vector<std::string> FileRemarks(const Job& job) {
  std::vector<std::string> remarks;
  if (!job.hf_folder.empty()) Remark(job.hf_folder, "config.json", HfDropout(job.hf_folder), remarks);
  if (!job.adapter_folder.empty()) {
    Remark(job.adapter_folder, "adapter_config.json", HfAdapterDropout(job.adapter_folder), remarks);
  }
  return remarks;
}

}  // namespace shale
