// Reads rows of JSON Lines: their text, and which of it counts in the loss.
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

// A row is {"text": T}, {"prompt": P, "completion": C} or {"messages": [{"role": R, "content": C}, ...]}. Other fields
// are ignored.
struct TextRow {
  std::string text;  // Well-formed UTF-8.
  // Whether a chat template wrote the text. If so, special tokens in the text become tokens, and nothing is put around
  // the document, because the template already did.
  bool is_chat = false;
  // What counts in the loss: begin, end, begin, end, ... as ascending offsets in `text`. The end of the text is the
  // last end if it is missing.
  std::vector<size_t> turns;
};

// A prompt of a row, and what follows it.
struct PromptRow {
  std::string prompt;
  std::string completion;  // Not empty.
  bool is_chat = false;    // A chat template wrote both, and the completion is one of TextRow::turns.
};

// Reads a row. `chat` turns messages into text. Returns InvalidArgument with file and line, and FailedPrecondition for
// messages if `chat` is null. REQUIRES: piece.is_row.
absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, LossOn loss_on, const ChatTemplate* chat);
// Returns what a model is asked to complete in a row: its prompt and completion, or for a row of messages each answer
// of the assistant with all messages before it. Returns none for other rows. Returns the errors of ReadTextRow.
// REQUIRES: piece.is_row.
absl::StatusOr<std::vector<PromptRow>> ReadPrompts(const DocumentPiece& piece, const ChatTemplate* chat);
// Returns whether ReadPrompts with a chat template would return any. Returns InvalidArgument with file and line.
// REQUIRES: piece.is_row.
absl::StatusOr<bool> HasPrompts(const DocumentPiece& piece);
// Returns the text of a row for counting words. Messages are joined by line ends, without a chat template. Returns
// InvalidArgument with file and line. REQUIRES: piece.is_row.
absl::StatusOr<std::string> WordsOfRow(const DocumentPiece& piece);

}  // namespace shale
