// Rows of JSON Lines: what one is as text, and which of it counts in the loss.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/data_enums.h"
#include "engine/tokenize/document_reader.h"

namespace shale {

// A row is {"text": T} or {"prompt": P, "completion": C}; other names in it are ignored.
struct TextRow {
  std::string text;  // Well-formed UTF-8.
  // Offsets in `text`, rising: it counts from the first to the second, from the third to the fourth, and so on; from
  // the last one to the end if their number is odd.
  std::vector<size_t> turns;
};

// Reads a row (DocumentPiece::is_row). Returns InvalidArgument with file and line.
absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, LossOn loss_on);

}  // namespace shale
