#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/config/data_errors.h"
#include "engine/data/data_format.h"
#include "engine/tokenize/prepared_text.h"
#include "engine/tokenize/tokenizer.h"
#include "kernels/check.h"

namespace shale {

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

absl::StatusOr<DataFacts> DataFactsForPlanning(const Job& job) {
  if (const std::optional<DataFacts> facts = FactsWithoutReading(job)) return *facts;
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
