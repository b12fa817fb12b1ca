#include "engine/evaluate/answers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/document_reader.h"
#include "engine/tokenize/text_row.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Calls use(prompt, completion) for each row that has both.
absl::Status ForEachPrompt(const std::string& path, bool all_rows, BadLines bad_lines,
                           const std::function<absl::StatusOr<bool>(PromptRow)>& use) {
  SHALE_ASSIGN_OR_RETURN(DocumentReader reader, DocumentReader::Open(path, {.all_rows = all_rows}));
  while (true) {
    std::vector<DocumentPiece> pieces;
    SHALE_RETURN_IF_ERROR(reader.Read(&pieces));
    if (pieces.empty()) return absl::OkStatus();
    for (const DocumentPiece& piece : pieces) {
      if (!piece.is_row) continue;
      absl::StatusOr<std::optional<PromptRow>> row = ReadPromptRow(piece);
      if (!row.ok() && bad_lines == BadLines::kSkip) continue;
      SHALE_RETURN_IF_ERROR(row.status());
      if (!row->has_value()) continue;
      SHALE_ASSIGN_OR_RETURN(const bool goes_on, use(**std::move(row)));
      if (!goes_on) return absl::OkStatus();
    }
  }
}

// An answer that is being generated.
class Speech {
 public:
  Speech(const Tokenizer& tokenizer, PromptRow row, bool ends, int64_t most_tokens)
      : stream_(tokenizer, /*skip_special=*/true),
        wanted_(absl::StripAsciiWhitespace(row.completion)),
        ends_(ends),
        left_(most_tokens) {
    answer_.prompt = std::move(row.prompt);
    answer_.completion = std::move(row.completion);
    answer_.unanswered = left_ < 1;
  }

  // Takes a token. Returns whether more are wanted.
  bool Push(int32_t token, bool whole) {
    answer_.answer += stream_.Push(token);
    const bool matches = Matches();
    // What ends nothing is compared as far as the completion goes.
    cut_ = --left_ < 1 || (!whole && !CanMatch()) || (!ends_ && matches && !whole);
    return !cut_;
  }

  Answer Finish() {
    answer_.answer += stream_.Finish();
    answer_.matches = !answer_.unanswered && Matches() && (!ends_ || !cut_);
    return std::move(answer_);
  }

 private:
  bool Matches() const {
    const absl::string_view said = absl::StripAsciiWhitespace(answer_.answer);
    return ends_ ? said == wanted_ : absl::StartsWith(said, wanted_);
  }
  bool CanMatch() const {
    const absl::string_view said = absl::StripLeadingAsciiWhitespace(answer_.answer);
    return said.size() <= wanted_.size() ? absl::StartsWith(wanted_, said) : Matches();
  }

  TokenStream stream_;
  Answer answer_;
  std::string wanted_;
  const bool ends_;  // The tokenizer has a token that ends an answer.
  int64_t left_;     // How many tokens the answer may still have.
  bool cut_ = false;
};

}  // namespace

absl::StatusOr<MatchReport> MatchCompletions(const std::string& path, const DataConfig& data,
                                             const Tokenizer& tokenizer, const std::vector<int32_t>& end_tokens,
                                             Sequences& sequences, const MatchOptions& options,
                                             const std::function<absl::Status(const Answer&)>& take) {
  NextTokens next(sequences);
  Encoder encoder(tokenizer);
  MatchReport report;
  std::vector<Speech> speeches;
  std::vector<std::vector<int32_t>> prompts;  // Of those speeches that are answered.
  std::vector<size_t> speech_of;              // By prompt.
  const auto answer = [&]() -> absl::Status {
    GenerateOptions generate = {.count = options.tokens, .stop_tokens = end_tokens};
    generate.sampling.temperature = 0;
    if (!prompts.empty()) {
      SHALE_RETURN_IF_ERROR(next.GenerateAll(prompts, generate, [&](int64_t i, int32_t token) {
        return speeches[speech_of[i]].Push(token, options.whole_answers);
      }));
    }
    for (Speech& speech : speeches) {
      const Answer said = speech.Finish();
      ++report.completions;
      report.matches += said.matches;
      report.unanswered += said.unanswered;
      if (take) SHALE_RETURN_IF_ERROR(take(said));
    }
    speeches.clear();
    prompts.clear();
    speech_of.clear();
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(ForEachPrompt(
      path, data.format == DataFormat::kJsonLines, data.bad_lines, [&](PromptRow row) -> absl::StatusOr<bool> {
        // As training reads it. Special tokens that stand in the text are text.
        std::vector<int32_t> prompt = tokenizer.prefix();
        SHALE_RETURN_IF_ERROR(encoder.Encode(row.prompt, {.special_tokens_in_text = false}, &prompt));
        const int64_t room = prompt.empty() ? 0 : sequences.positions() - std::ssize(prompt);
        speeches.emplace_back(tokenizer, std::move(row), !end_tokens.empty(), std::min(room, options.tokens));
        if (room > 0) {
          prompts.push_back(std::move(prompt));
          speech_of.push_back(speeches.size() - 1);
        }
        if (std::ssize(prompts) == sequences.size()) SHALE_RETURN_IF_ERROR(answer());
        return true;
      }));
  SHALE_RETURN_IF_ERROR(answer());
  return report;
}

absl::StatusOr<bool> HasCompletions(const std::string& path, bool all_rows) {
  bool found = false;
  SHALE_RETURN_IF_ERROR(ForEachPrompt(path, all_rows, BadLines::kSkip, [&](const PromptRow&) -> absl::StatusOr<bool> {
    found = true;
    return false;
  }));
  return found;
}

}  // namespace shale
