#include "engine/tokenize/text_row.h"

#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/text/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::StatusOr<std::string> TextOf(const Json& row, const char* name) {
  const Json& value = row[name];
  if (value.is_string()) return value.get<std::string>();
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\": found ", ShownJson(value), "; wanted a string"));
}

absl::StatusOr<TextRow> ReadRow(absl::string_view line, LossOn loss_on) {
  if (!IsUtf8(line)) return absl::InvalidArgumentError("it is not UTF-8");
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseStrictJson(line));
  if (json.contains("text")) {
    SHALE_ASSIGN_OR_RETURN(std::string text, TextOf(json, "text"));
    return TextRow{.text = std::move(text), .turns = {0}};
  }
  if (json.contains("prompt") && json.contains("completion")) {
    SHALE_ASSIGN_OR_RETURN(const std::string prompt, TextOf(json, "prompt"));
    SHALE_ASSIGN_OR_RETURN(const std::string completion, TextOf(json, "completion"));
    if (completion.empty()) return absl::InvalidArgumentError("\"completion\" is empty");
    return TextRow{.text = prompt + completion, .turns = {loss_on == LossOn::kAll ? 0 : prompt.size()}};
  }
  return absl::InvalidArgumentError("it has neither \"text\" nor \"prompt\" and \"completion\"");
}

}  // namespace

absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, LossOn loss_on) {
  absl::StatusOr<TextRow> row = ReadRow(piece.text, loss_on);
  if (row.ok()) return row;
  return absl::Status(row.status().code(), absl::StrCat(*piece.path, ":", piece.line, ": ", row.status().message()));
}

}  // namespace shale
