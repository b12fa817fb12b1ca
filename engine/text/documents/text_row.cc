#include "engine/text/documents/text_row.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/strings/messages.h"
#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

enum class RowForm { kText, kPrompt, kMessages };

// Members that every form of a row reads.
constexpr absl::string_view kOfText[] = {"text"};
constexpr absl::string_view kOfPrompt[] = {"prompt", "completion"};
constexpr absl::string_view kOfMessages[] = {"messages", "tools", "documents", "chat_template_kwargs"};
// Members by which other trainers change what a row means, and which nothing here reads.
constexpr absl::string_view kOfOthers[] = {"image",
                                           "images",
                                           "video",
                                           "videos",
                                           "audio",
                                           "audios",
                                           "chosen",
                                           "rejected",
                                           "functions",
                                           "function_call",
                                           "input_ids",
                                           "labels",
                                           "attention_mask",
                                           "completion_mask",
                                           "assistant_masks",
                                           "loss_mask",
                                           "weight",
                                           "train",
                                           "system",
                                           "system_prompt",
                                           "chat_template",
                                           "add_generation_prompt",
                                           "continue_final_message"};

bool Has(const Value& row, absl::string_view name) {
  const Value* found = row.Find(name);
  return found != nullptr && !found->is(ValueKind::kNone);
}

bool IsOf(absl::Span<const absl::string_view> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::Span<const absl::string_view> MembersOf(RowForm form) {
  switch (form) {
    case RowForm::kText: return kOfText;
    case RowForm::kPrompt: return kOfPrompt;
    case RowForm::kMessages: return kOfMessages;
  }
  return {};
}

absl::StatusOr<RowForm> FormOf(const Value& row) {
  const bool text = Has(row, "text"), messages = Has(row, "messages");
  const bool prompt = Has(row, "prompt"), completion = Has(row, "completion");
  if (text + messages + (prompt || completion) > 1) {
    std::string found;
    for (const char* name : {"text", "messages", "prompt", "completion"}) {
      if (Has(row, name)) absl::StrAppend(&found, found.empty() ? "\"" : " and \"", name, "\"");
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "it has ", found, ", and only one of \"text\", \"messages\" and \"prompt\" with \"completion\" can be meant"));
  }
  if (text) return RowForm::kText;
  if (messages) return RowForm::kMessages;
  if (prompt && completion) return RowForm::kPrompt;
  return absl::InvalidArgumentError("it has neither \"text\" nor \"messages\" nor \"prompt\" and \"completion\"");
}

// Returns the members of a row that nothing reads. Returns InvalidArgument for those that would change what it means.
absl::StatusOr<std::vector<std::string>> IgnoredMembers(const Value& row, RowForm form) {
  std::vector<std::string> ignored;
  for (const auto& [name, value] : *row.dict) {
    if (value.is(ValueKind::kNone) || IsOf(MembersOf(form), name)) continue;
    const bool empty =
        (value.is(ValueKind::kList) || value.is(ValueKind::kDict) || value.is(ValueKind::kString)) && !value.truth();
    const bool one = (name == "weight" || name == "train") && value.is_number() && value.number == 1;
    const bool of_messages = form != RowForm::kMessages && IsOf(kOfMessages, name);
    if (!empty && !one && (of_messages || IsOf(kOfOthers, name))) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(name), " would change what the row means, and ",
                                                     of_messages ? "only rows of messages have it" : "is not supported",
                                                     ": found ", ShownValue(value)));
    }
    ignored.push_back(name);
  }
  return ignored;
}

absl::StatusOr<std::string> TextOf(const Value& row, const char* name) {
  const Value& value = *row.Find(name);
  if (value.is(ValueKind::kString)) return value.text();
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\": found ", ShownValue(value), "; wanted a string"));
}

absl::StatusOr<PromptRow> ReadParts(const Value& row) {
  PromptRow parts;
  SHALE_ASSIGN_OR_RETURN(parts.prompt, TextOf(row, "prompt"));
  SHALE_ASSIGN_OR_RETURN(parts.completion, TextOf(row, "completion"));
  if (parts.completion.empty()) return absl::InvalidArgumentError("\"completion\" is empty");
  return parts;
}

absl::StatusOr<TextRow> ReadChat(const Value& row, const RowOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(row));
  if (options.chat == nullptr) return absl::FailedPreconditionError("\"messages\" need a chat template");
  const bool all = options.loss_on == LossOn::kAll;
  if (all) {
    for (size_t i = 0; i < conversation.messages.size(); ++i) {
      if (conversation.messages[i].counts) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "message ", i, ": it is not to count, and with data.loss_on ALL everything counts; use COMPLETIONS"));
    }
  }
  SHALE_ASSIGN_OR_RETURN(ChatText text,
                         all ? options.chat->RenderAll(conversation) : options.chat->RenderWithTurns(conversation));
  if (all) {
    text.turns = {0};
  } else if (text.turns.empty()) {
    return absl::InvalidArgumentError("\"messages\": none is of the assistant");
  }
  if (!text.left_out.empty() && !options.allow_dropped_text) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.left_out, "; data.allow_dropped_text=true trains without what templates leave out"));
  }
  return TextRow{.text = std::move(text.text),
                 .is_chat = true,
                 .turns = std::move(text.turns),
                 .marked = text.marked,
                 .said = std::move(text.said),
                 .left_out = std::move(text.left_out)};
}

absl::StatusOr<TextRow> ReadForm(const Value& row, RowForm form, const RowOptions& options) {
  if (form == RowForm::kMessages) return ReadChat(row, options);
  TextRow read;
  if (form == RowForm::kText) {
    SHALE_ASSIGN_OR_RETURN(read.text, TextOf(row, "text"));
    read.turns = {0};
  } else {
    SHALE_ASSIGN_OR_RETURN(const PromptRow parts, ReadParts(row));
    read.text = parts.prompt + parts.completion;
    read.turns = {options.loss_on == LossOn::kAll ? 0 : parts.prompt.size()};
  }
  read.said = {0, read.text.size()};
  return read;
}

absl::StatusOr<TextRow> ReadRow(absl::string_view line, const RowOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const Value row, ParseRowJson(line));
  SHALE_ASSIGN_OR_RETURN(const RowForm form, FormOf(row));
  SHALE_ASSIGN_OR_RETURN(std::vector<std::string> ignored, IgnoredMembers(row, form));
  SHALE_ASSIGN_OR_RETURN(TextRow read, ReadForm(row, form, options));
  read.ignored = std::move(ignored);
  return read;
}

absl::StatusOr<std::vector<PromptRow>> Prompts(absl::string_view line, RowOptions options) {
  options.loss_on = LossOn::kCompletions;
  SHALE_ASSIGN_OR_RETURN(const Value json, ParseRowJson(line));
  SHALE_ASSIGN_OR_RETURN(const RowForm form, FormOf(json));
  SHALE_RETURN_IF_ERROR(IgnoredMembers(json, form).status());
  SHALE_ASSIGN_OR_RETURN(const TextRow row, ReadForm(json, form, options));
  std::vector<PromptRow> prompts;
  if (form == RowForm::kText) return prompts;
  for (size_t i = 0; i < row.turns.size(); i += 2) {
    const size_t begin = row.turns[i], end = i + 1 < row.turns.size() ? row.turns[i + 1] : row.text.size();
    if (begin < end) prompts.push_back({row.text.substr(0, begin), row.text.substr(begin, end - begin), row.is_chat});
  }
  return prompts;
}

absl::StatusOr<bool> Asks(absl::string_view line) {
  SHALE_ASSIGN_OR_RETURN(const Value row, ParseRowJson(line));
  SHALE_ASSIGN_OR_RETURN(const RowForm form, FormOf(row));
  if (form != RowForm::kMessages) return form == RowForm::kPrompt;
  SHALE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(row));
  return std::any_of(conversation.messages.begin(), conversation.messages.end(),
                     [](const ChatMessage& message) { return message.role() == "assistant"; });
}

absl::StatusOr<std::string> Words(absl::string_view line) {
  SHALE_ASSIGN_OR_RETURN(const Value row, ParseRowJson(line));
  SHALE_ASSIGN_OR_RETURN(const RowForm form, FormOf(row));
  if (form != RowForm::kMessages) {
    SHALE_ASSIGN_OR_RETURN(TextRow read, ReadForm(row, form, {}));
    return std::move(read.text);
  }
  SHALE_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(row));
  std::string text;
  for (const ChatSource& source : Numbered(conversation).sources) {
    if (!source.anywhere) absl::StrAppend(&text, source.text, "\n");
  }
  return text;
}

// Returns a value, or its error with file and line.
template <class T>
absl::StatusOr<T> At(const DocumentPiece& piece, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::Status(value.status().code(), absl::StrCat(piece.Place(), ": ", value.status().message()));
}

// Finds the tokens at the borders of turns.
class BorderFinder {
 public:
  BorderFinder(const TextRow& row, bool special_tokens, const Tokenizer& tokenizer, Encoder& encoder,
               const std::vector<int32_t>& tokens, size_t begin)
      : row_(row),
        special_tokens_(special_tokens),
        tokenizer_(tokenizer),
        encoder_(encoder),
        tokens_(tokens),
        begin_(begin) {}

  // Returns the index of the first token behind `place`, an offset in the text. `is_end` says whether a turn ends
  // there.
  absl::StatusOr<size_t> TokenAt(size_t place, bool is_end) {
    std::vector<int32_t> alone;
    SHALE_RETURN_IF_ERROR(encoder_.Encode(absl::string_view(row_.text).substr(0, place),
                                          {.special_tokens_in_text = special_tokens_}, &alone));
    const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(begin_);
    const auto differs = std::mismatch(first, tokens_.end(), alone.begin(), alone.end());
    if (!row_.marked || differs.second == alone.end()) return differs.first - tokens_.begin();
    return TokenWithBytes(place, is_end);
  }

 private:
  // Does the same if a token has bytes on both sides of `place`: that token belongs to the turn.
  absl::StatusOr<size_t> TokenWithBytes(size_t place, bool is_end) {
    if (ends_.empty()) SHALE_RETURN_IF_ERROR(FindEnds());
    const size_t at = std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin();  // The token with the byte.
    const size_t token_begin = at == 0 ? 0 : ends_[at - 1];
    if (token_begin == place) return begin_ + at;
    // Some tokenizers do not count white space at the beginning of a token as a part of it, in transformers.
    const std::string inside = row_.text.substr(token_begin, place - token_begin);
    const bool space = std::all_of(inside.begin(), inside.end(), [](char c) { return IsPythonSpace(c & 0x7F); });
    if (space && is_end) return Untold();
    return begin_ + at + (is_end ? 1 : 0);
  }

  // Finds where each token ends in the text.
  absl::Status FindEnds() {
    TokenStream stream(tokenizer_, /*skip_special=*/false);
    std::string text;
    for (size_t i = begin_; i < tokens_.size(); ++i) {
      text += stream.Push(tokens_[i]);
      ends_.push_back(text.size());
    }
    if (text + stream.Finish() == row_.text) return absl::OkStatus();
    return Untold();
  }
  static absl::Status Untold() {
    return absl::InvalidArgumentError(
        "the template marks a part of the text ({% generation %}) whose border lies within a token");
  }

  const TextRow& row_;
  const bool special_tokens_;
  const Tokenizer& tokenizer_;
  Encoder& encoder_;
  const std::vector<int32_t>& tokens_;
  const size_t begin_;
  std::vector<size_t> ends_;  // By token, where it ends in the text.
};

}  // namespace

absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, const RowOptions& options) {
  return At(piece, ReadRow(piece.text, options));
}

absl::StatusOr<std::vector<PromptRow>> ReadPrompts(const DocumentPiece& piece, const RowOptions& options) {
  return At(piece, Prompts(piece.text, options));
}

absl::StatusOr<bool> HasPrompts(const DocumentPiece& piece) { return At(piece, Asks(piece.text)); }

absl::StatusOr<std::string> WordsOfRow(const DocumentPiece& piece) { return At(piece, Words(piece.text)); }

absl::Status AppendCounts(const TextRow& row, bool special_tokens, const Tokenizer& tokenizer, Encoder& encoder,
                          const std::vector<int32_t>& tokens, size_t begin, std::vector<uint8_t>* counts) {
  BorderFinder borders(row, special_tokens, tokenizer, encoder, tokens, begin);
  for (size_t i = 0; i < row.turns.size(); ++i) {
    if (row.turns[i] == 0) continue;
    SHALE_ASSIGN_OR_RETURN(const size_t place, borders.TokenAt(row.turns[i], /*is_end=*/i % 2 == 1));
    counts->resize(std::max(place, counts->size()), i % 2);
  }
  counts->resize(tokens.size(), row.turns.size() % 2);
  return absl::OkStatus();
}

}  // namespace shale
