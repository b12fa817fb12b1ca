// Fuzzes rows of JSON Lines. A line is refused, or gives text of UTF-8 with turns that rise and lie in it, prompts of
// UTF-8, and words.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/strings/utf8.h"
#include "engine/text/documents/text_row.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr absl::string_view kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

void CheckTextRow(absl::string_view line) {
  const DocumentPiece piece = {
      .text = std::string(line), .is_row = true, .path = std::make_shared<const std::string>("rows.jsonl"), .line = 7};
  static const ChatTemplate& chat = *new ChatTemplate(*ChatTemplate::Parse(kTemplate, {{"eos_token", "</s>"}}));
  for (const LossOn loss_on : {LossOn::kCompletions, LossOn::kAll}) {
    const absl::StatusOr<TextRow> row = ReadTextRow(piece, {.loss_on = loss_on, .chat = &chat});
    if (!row.ok()) {
      CheckRefusal(row.status());
      continue;
    }
    SHALE_CHECK(IsUtf8(row->text));
    size_t before = 0;
    for (const size_t turn : row->turns) {
      SHALE_CHECK(before <= turn && turn <= row->text.size()) << turn;
      before = turn;
    }
  }
  if (const absl::StatusOr<std::string> words = WordsOfRow(piece); !words.ok()) CheckRefusal(words.status());
  const absl::StatusOr<std::vector<PromptRow>> prompts = ReadPrompts(piece, {.chat = &chat});
  if (!prompts.ok()) return CheckRefusal(prompts.status());
  for (const PromptRow& row : *prompts) SHALE_CHECK(IsUtf8(row.prompt) && IsUtf8(row.completion));
  const absl::StatusOr<bool> has_prompts = HasPrompts(piece);
  SHALE_CHECK(has_prompts.ok()) << has_prompts.status();
  SHALE_CHECK(*has_prompts == !prompts->empty());
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckTextRow({reinterpret_cast<const char*>(data), size});
  return 0;
}
