#include "engine/plan/config/job_files.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/files/data/data_format.h"
#include "engine/files/data/token_source.h"
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

std::vector<std::string> SettingRemarks(const Job& job) {
  std::vector<std::string> remarks = LearningRateRemarks(job.optimizer);
  if (!job.runtime.search.empty()) {
    remarks.emplace_back(
        "runtime.search leaves fields to a search, which train makes on a machine that was measured; this is the job "
        "as it is written");
  }
  return remarks;
}

std::vector<std::string> JobRemarks(const Job& job) {
  std::vector<std::string> remarks = SettingRemarks(job);
  if (!job.hf_folder.empty()) Remark(job.hf_folder, "config.json", HfDropout(job.hf_folder), remarks);
  if (!job.adapter_folder.empty()) {
    Remark(job.adapter_folder, "adapter_config.json", HfAdapterDropout(job.adapter_folder), remarks);
  }
  return remarks;
}

DataFacts DataFactsOf(const TokenSource& source) {
  return {.format = source.format(), .vocabulary = source.vocabulary()};
}

namespace {

// Returns the facts of data that need not be read for that.
std::optional<DataFacts> FactsWithoutReading(const Job& job) {
  if (Vocabulary(job.model) > 0) return DataFacts{};
  if (job.data.format == DataFormat::kText && !job.data.has_tokenizer()) {
    return DataFacts{.format = DataFormat::kText, .vocabulary = kTextVocabulary};
  }
  // The program gives the data, which need not have a vocabulary.
  if (job.data.path.empty() && std::holds_alternative<CustomModel>(job.model)) return DataFacts{};
  return std::nullopt;
}

}  // namespace

absl::StatusOr<DataFacts> DataFactsWithoutReading(const Job& job, const DataFacts& known) {
  if (known.vocabulary > 0) return known;
  if (const std::optional<DataFacts> facts = FactsWithoutReading(job)) return *facts;
  return absl::InvalidArgumentError(
      absl::StrCat("model.", KindName(job.model), ".vocabulary: left to the data, which are not read here; set it",
                   job.data.has_tokenizer() ? "" : ", or data.format=TEXT if they are text"));
}

void ApplyDataFacts(const DataFacts& data, Job& job) {
  if (data.format != DataFormat::kByContent) job.data.format = data.format;
  std::visit(
      [&](auto& model) {
        if (model.vocabulary == 0) model.vocabulary = data.vocabulary;
      },
      job.model);
}

}  // namespace shale
