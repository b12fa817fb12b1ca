// Rows of JSON Lines: what one is as text, and which of it counts in the loss.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/data_enums.h"
#include "engine/tokenize/chat_template.h"
#include "engine/tokenize/document_reader.h"

namespace shale {

// A row is {"text": T}, {"prompt": P, "completion": C} or {"messages": [{"role": R, "content": C}, ...]}; other names
// in it are ignored.
struct TextRow {
  std::string text;  // Well-formed UTF-8.
  // A chat template wrote it: special tokens in it are tokens, and those around a document are part of it.
  bool is_chat = false;
  // Offsets in `text`, rising: it counts from the first to the second, from the third to the fourth, and so on; from
  // the last one to the end if their number is odd.
  std::vector<size_t> turns;
};

// Reads a row (DocumentPiece::is_row). `chat` makes text of messages. Returns InvalidArgument with file and line, and
// FailedPrecondition for messages without a `chat`.
absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, LossOn loss_on, const ChatTemplate* chat);
// A prompt of a row, and what follows it.
struct PromptRow {
  std::string prompt;
  std::string completion;  // Not empty.
  bool is_chat = false;    // A chat template wrote both, and the completion is one of TextRow::turns.
};
// Returns the prompt of a row that has a prompt and a completion, those of all answers of the assistant in a row of
// messages, each behind the messages before it, and none for other rows. Returns the same errors.
absl::StatusOr<std::vector<PromptRow>> ReadPrompts(const DocumentPiece& piece, const ChatTemplate* chat);
// Returns whether that of a row gives a prompt, if there is a template. Returns the same errors.
absl::StatusOr<bool> HasPrompts(const DocumentPiece& piece);
// Returns the text of a row for counting words: that of messages without a template. Returns the same errors.
absl::StatusOr<std::string> WordsOfRow(const DocumentPiece& piece);

}  // namespace shale
