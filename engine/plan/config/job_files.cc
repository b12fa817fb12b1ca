#include "engine/plan/config/job_files.h"

#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/config_parts.h"

namespace shale {

absl::Status InField(const std::vector<NamedPath>& named, const absl::Status& status) {
  if (status.ok() || absl::StartsWith(status.message(), "data.")) return status;
  absl::string_view field = named.front().field;
  size_t longest = 0;
  for (const NamedPath& one : named) {
    if (one.path.size() <= longest || !absl::StrContains(status.message(), one.path)) continue;
    field = one.field;
    longest = one.path.size();
  }
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

absl::Status CheckTokenizerExists(const DataConfig& data) {
  std::error_code error;
  if (!data.has_tokenizer() || std::filesystem::exists(data.tokenizer, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.tokenizer: ", data.tokenizer,
                   " does not exist; give a folder with tokenizer.json (tokenize --train makes "
                   "one), or \"bytes\""));
}

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
