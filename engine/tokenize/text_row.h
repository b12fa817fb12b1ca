// Reads rows of JSON Lines: their text, and which of it counts in the loss.
#pragma once

#include <cstddef>
#include <optional>
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

// The parts of a row with a prompt and a completion.
struct PromptRow {
  std::string prompt;
  std::string completion;  // Not empty.
};

// Reads a row. `chat` turns messages into text. Returns InvalidArgument with file and line, and FailedPrecondition for
// messages if `chat` is null. REQUIRES: piece.is_row.
absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, LossOn loss_on, const ChatTemplate* chat);
// Returns the prompt and the completion of a row, or none for a row of another kind. Returns InvalidArgument with file
// and line. REQUIRES: piece.is_row.
absl::StatusOr<std::optional<PromptRow>> ReadPromptRow(const DocumentPiece& piece);
// Returns the text of a row for counting words. Messages are joined by line ends, without a chat template. Returns
// InvalidArgument with file and line. REQUIRES: piece.is_row.
absl::StatusOr<std::string> WordsOfRow(const DocumentPiece& piece);

}  // namespace shale
