// Reads rows of JSON Lines: their text or conversation, and which tokens count in the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/data_enums.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/chat/conversation.h"
#include "engine/text/chat/template_value.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace shale {

// A row is {"text": T}, {"prompt": P, "completion": C} or {"messages": [{"role": R, "content": C}, ...]}; the last may
// have "tools", "documents" and "chat_template_kwargs" besides (ReadConversation). A row of two of these forms is
// refused, and so are members that would change what it means, such as "images". Null members are as none.
struct TextRow {
  std::string text;  // Well-formed UTF-8.
  // Whether a chat template wrote the text. If so, special tokens in the text become tokens, and nothing is put around
  // the document, because the template already did.
  bool is_chat = false;
  // What counts in the loss: begin, end, begin, end, ... as ascending offsets in `text`. The end of the text is the
  // last end if it is missing.
  std::vector<size_t> turns;
  bool marked = false;               // ChatText::marked.
  std::vector<size_t> said;          // What the row says: begin, end, ... as ascending offsets in `text`.
  std::string left_out;              // ChatText::left_out.
  std::vector<std::string> ignored;  // Members that nothing reads.
};

struct RowOptions {
  LossOn loss_on = LossOn::kCompletions;
  const ChatTemplate* chat = nullptr;  // Turns messages into text. Borrowed.
  // Whether a row whose text lacks some of what its messages say is read all the same (DataConfig).
  bool allow_dropped_text = false;
};

// A prompt of a row, and what follows it.
struct PromptRow {
  std::string prompt;
  std::string completion;  // Not empty.
  bool is_chat = false;    // A chat template wrote both, and the completion is one of TextRow::turns.
};

// Reads a row. Returns InvalidArgument with file and line, and FailedPrecondition for messages if `chat` is null.
// REQUIRES: piece.is_row.
absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, const RowOptions& options);
// Returns what a model is asked to complete in a row: its prompt and completion, or for a row of messages each answer
// of the assistant with all messages before it. Returns none for other rows. Returns the errors of ReadTextRow.
// REQUIRES: piece.is_row.
absl::StatusOr<std::vector<PromptRow>> ReadPrompts(const DocumentPiece& piece, const RowOptions& options);
// Returns whether ReadPrompts with a chat template would return any. Returns InvalidArgument with file and line.
// REQUIRES: piece.is_row.
absl::StatusOr<bool> HasPrompts(const DocumentPiece& piece);
// Returns the text of a row for counting words. Messages are joined by line ends, without a chat template. Returns
// InvalidArgument with file and line. REQUIRES: piece.is_row.
absl::StatusOr<std::string> WordsOfRow(const DocumentPiece& piece);

// Extends `*counts` to all `tokens`: 1 for each that counts, 0 for the others. The tokens from `begin` on are those of
// the text of `row`, encoded with or without `special_tokens` in it. REQUIRES: counts->size() == begin.
//
// A turn counts from the first token that the text before it alone does not have, and ends by the same rule. If the
// template marks the turns (TextRow::marked), a token counts if any of its bytes lies in a turn. Returns
// InvalidArgument where a tokenizer does not tell which bytes a token at such a border has.
absl::Status AppendCounts(const TextRow& row, bool special_tokens, const Tokenizer& tokenizer, Encoder& encoder,
                          const std::vector<int32_t>& tokens, size_t begin, std::vector<uint8_t>* counts);

// The parts of ReadTextRow for conversations (row_conversation.cc). ParseRowJson makes values whose members keep their
// order.

// Returns the conversation of a row that has "messages": these, and its "tools", "documents" and
// "chat_template_kwargs", which a template reads as those that apply_chat_template is given. Null members of the row
// and of messages are as none. "train" (true or false) and "weight" (0 or 1) of a message say whether it counts.
// Returns InvalidArgument with the place of what has another form, of parts of messages that are no text, and of
// answers that count in a row of none.
absl::StatusOr<Conversation> ReadConversation(const TemplateValue& row);

// Returns a value for a message, on one line and cut.
std::string ShownValue(const TemplateValue& value);

// Returns the dict that a line is. Accepts any bytes. Returns InvalidArgument for bytes that are not UTF-8, and the
// errors of ParseStrictJson.
absl::StatusOr<TemplateValue> ParseRowJson(absl::string_view line);

}  // namespace shale
