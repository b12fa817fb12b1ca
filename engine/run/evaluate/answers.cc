#include "engine/run/evaluate/answers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/run/generate/generated_text.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/text_row.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Calls use(row) for each row of JSON Lines, until it returns false.
absl::Status ForEachRow(const std::string& path, bool all_rows,
                        const std::function<absl::StatusOr<bool>(const DocumentPiece&)>& use) {
  const DataFormat format = all_rows ? DataFormat::kJsonLines : DataFormat::kByContent;
  SHALE_ASSIGN_OR_RETURN(DocumentReader reader,
                         DocumentReader::Open(path, {.files = {.format = format, .for_evaluation = true}}));
  while (true) {
    std::vector<DocumentPiece> pieces;
    SHALE_RETURN_IF_ERROR(reader.Read(&pieces));
    if (pieces.empty()) return absl::OkStatus();
    for (const DocumentPiece& piece : pieces) {
      if (!piece.is_row) continue;
      SHALE_ASSIGN_OR_RETURN(const bool goes_on, use(piece));
      if (!goes_on) return absl::OkStatus();
    }
  }
}

// What ends an answer.
struct Ends {
  std::vector<int32_t> tokens;
  std::string text;  // Empty: none.
  bool any() const { return !tokens.empty() || !text.empty(); }
};

// An answer that is being generated.
class Speech {
 public:
  Speech(const Tokenizer& tokenizer, PromptRow row, const Ends& ends, int64_t most_tokens)
      : text_(&tokenizer, /*is_text=*/false, /*skip_special=*/true, {ends.text}),
        wanted_(absl::StripAsciiWhitespace(row.completion)),
        ends_(ends.any()),
        left_(most_tokens) {
    answer_.prompt = std::move(row.prompt);
    answer_.completion = std::move(row.completion);
    answer_.unanswered = left_ < 1;
  }

  // Adds a token. Returns whether the answer goes on.
  bool Push(int32_t token, bool whole) {
    answer_.answer += text_.Push(token);
    --left_;
    if (text_.stopped()) return false;
    const bool matches = Matches();
    // If nothing ends an answer, it is generated until it is as long as the completion.
    cut_ = left_ < 1 || (!whole && !CanMatch()) || (!ends_ && matches && !whole);
    return !cut_;
  }

  Answer Finish() {
    answer_.answer += text_.Finish();
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

  GeneratedText text_;
  Answer answer_;
  std::string wanted_;
  const bool ends_;  // Whether there is a token or a text that ends an answer.
  int64_t left_;     // How many tokens the answer may still have.
  bool cut_ = false;
};

// Answers prompts, as many at once as there are sequences. Does not answer conversations and other rows at once,
// because other tokens end them.
class Matcher {
 public:
  Matcher(const MatchText& text, Sequences& sequences, const MatchOptions& options,
          const std::function<absl::Status(const Answer&)>& take)
      : text_(text), sequences_(sequences), options_(options), take_(take), next_(sequences), encoder_(text.tokenizer) {
    ends_[false].tokens = ends_[true].tokens = text.end_tokens;
    if (text.chat == nullptr) return;
    // A template that cannot write a conversation is reported when the first row with messages is read.
    const ChatTurn turn = FindTurn(*text.chat, text.tokenizer).value_or(ChatTurn());
    turn_end_ = turn.end;
    if (turn.end_token >= 0) {
      ends_[true].tokens.push_back(turn.end_token);
    } else {
      ends_[true].text = turn.end;
    }
  }

  absl::Status Add(PromptRow row) {
    if (row.is_chat != is_chat_) SHALE_RETURN_IF_ERROR(Finish());
    is_chat_ = row.is_chat;
    // The prompt becomes the tokens that it is in training: special tokens that stand in the text are text, unless a
    // chat template wrote it.
    std::vector<int32_t> prompt;
    if (!row.is_chat) prompt = text_.tokenizer.prefix();
    SHALE_RETURN_IF_ERROR(encoder_.Encode(row.prompt, {.special_tokens_in_text = row.is_chat}, &prompt));
    if (row.is_chat) row.completion = Said(row.completion);
    const int64_t room = prompt.empty() ? 0 : sequences_.positions() - std::ssize(prompt);
    speeches_.emplace_back(text_.tokenizer, std::move(row), ends_[is_chat_], std::min(room, options_.tokens));
    if (room > 0) {
      prompts_.push_back(std::move(prompt));
      speech_of_.push_back(speeches_.size() - 1);
    }
    return std::ssize(prompts_) == sequences_.size() ? Finish() : absl::OkStatus();
  }

  // Answers the prompts that were added and not yet answered.
  absl::Status Finish() {
    GenerateOptions generate = {.count = options_.tokens, .stop_tokens = ends_[is_chat_].tokens};
    generate.sampling.temperature = 0;
    if (!prompts_.empty()) {
      SHALE_RETURN_IF_ERROR(next_.GenerateAll(prompts_, generate, [&](int64_t i, int32_t token) {
        return speeches_[speech_of_[i]].Push(token, options_.whole_answers);
      }));
    }
    for (Speech& speech : speeches_) {
      const Answer said = speech.Finish();
      ++report_.completions;
      report_.matches += said.matches;
      report_.unanswered += said.unanswered;
      if (take_) SHALE_RETURN_IF_ERROR(take_(said));
    }
    speeches_.clear();
    prompts_.clear();
    speech_of_.clear();
    return absl::OkStatus();
  }

  const MatchReport& report() const { return report_; }

 private:
  // Returns an answer without what the template writes behind it.
  std::string Said(absl::string_view turn) const {
    absl::string_view said = absl::StripTrailingAsciiWhitespace(turn);
    absl::ConsumeSuffix(&said, turn_end_);
    return std::string(absl::StripAsciiWhitespace(said));
  }

  const MatchText& text_;
  Sequences& sequences_;
  const MatchOptions& options_;
  const std::function<absl::Status(const Answer&)>& take_;
  NextTokens next_;
  Encoder encoder_;
  std::array<Ends, 2> ends_;  // By whether the row is a conversation.
  std::string turn_end_;
  MatchReport report_;
  // The rows that wait to be answered. All are conversations, or none is.
  bool is_chat_ = false;
  std::vector<Speech> speeches_;
  std::vector<std::vector<int32_t>> prompts_;  // Of the rows whose prompts fit the context.
  std::vector<size_t> speech_of_;              // By prompt, its place in speeches_.
};

}  // namespace

absl::StatusOr<MatchReport> MatchCompletions(const std::string& path, const DataConfig& data, const MatchText& text,
                                             Sequences& sequences, const MatchOptions& options,
                                             const std::function<absl::Status(const Answer&)>& take) {
  Matcher matcher(text, sequences, options, take);
  const RowOptions row_options = {.chat = text.chat, .allow_dropped_text = data.allow_dropped_text};
  const auto add = [&](const DocumentPiece& piece) -> absl::StatusOr<bool> {
    absl::StatusOr<std::vector<PromptRow>> rows = ReadPrompts(piece, row_options);
    if (!rows.ok() && data.bad_lines == BadLines::kSkip) return true;
    SHALE_RETURN_IF_ERROR(rows.status());
    const size_t first = options.last_turns && rows->size() > 1 ? rows->size() - 1 : 0;
    for (size_t i = first; i < rows->size(); ++i) SHALE_RETURN_IF_ERROR(matcher.Add(std::move((*rows)[i])));
    return true;
  };
  SHALE_RETURN_IF_ERROR(ForEachRow(path, data.format == DataFormat::kJsonLines, add));
  SHALE_RETURN_IF_ERROR(matcher.Finish());
  return matcher.report();
}

absl::StatusOr<bool> HasCompletions(const std::string& path, bool all_rows) {
  bool found = false;
  SHALE_RETURN_IF_ERROR(ForEachRow(path, all_rows, [&](const DocumentPiece& piece) -> absl::StatusOr<bool> {
    found = HasPrompts(piece).value_or(false);
    return !found;
  }));
  return found;
}

}  // namespace shale
