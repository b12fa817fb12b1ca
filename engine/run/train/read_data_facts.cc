// Reads from data what a job leaves to them (engine/api/job.h). Needs no more of the engine than the readers of data,
// so that a program that only plans stays small.
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/files/data/token_source.h"
#include "engine/plan/config/job_files.h"
#include "engine/text/documents/prepared_text.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<DataFacts> DataFactsForPlanning(const Job& job) {
  if (const absl::StatusOr<DataFacts> facts = DataFactsWithoutReading(job, {}); facts.ok()) return *facts;
  const bool custom = std::holds_alternative<CustomModel>(job.model);
  if (job.data.path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.path: missing, and the job leaves its vocabulary to its data; give it, or add --set model.",
                     KindName(job.model), ".vocabulary=N"));
  }
  if (job.data.has_tokenizer()) {
    SHALE_RETURN_IF_ERROR(CheckTokenizerExists(job.data));
    const auto in_field = [](absl::string_view field, const absl::Status& status) {
      return status.ok() ? status : absl::InvalidArgumentError(InField({{field, ""}}, status).message());
    };
    const absl::StatusOr<bool> text = IsText(job.data.path, job.data.files(false));
    SHALE_RETURN_IF_ERROR(in_field("data.path", text.status()));
    if (*text) {
      const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(job.data.tokenizer);
      SHALE_RETURN_IF_ERROR(in_field("data.tokenizer", tokenizer.status()));
      return DataFacts{.vocabulary = tokenizer->vocabulary()};
    }
  }
  const absl::StatusOr<TokenSource> source = TokenSource::Open(job.data.path, job.data.files(false));
  if (source.ok()) return DataFactsOf(*source);
  const std::string field = custom ? "a vocabulary to the model of the program"
                                   : absl::StrCat("--set model.", KindName(job.model), ".vocabulary=N");
  return absl::InvalidArgumentError(
      absl::StrCat("data.path: the job leaves its vocabulary to its data, which cannot be read (",
                   source.status().message(), "); add ", field, ", or --set data.format=TEXT if it is text"));
}

}  // namespace shale
