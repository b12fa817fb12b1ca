#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/files/data/data_format.h"
#include "engine/files/data/token_source.h"

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
