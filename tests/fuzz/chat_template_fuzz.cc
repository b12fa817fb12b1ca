// Fuzzes chat templates. A template is refused, or makes text of UTF-8 of conversations, the same each time, with turns
// that rise and lie in it.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "engine/strings/utf8.h"
#include "engine/text/chat/chat_template.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

// Returns whether the template has a number of three digits. Loops over range() of large numbers take a million steps
// each before they are refused, which unit tests cover: here they would only take the time of other inputs.
bool HasLargeNumber(absl::string_view source) {
  int digits = 0;
  for (const char c : source) {
    digits = absl::ascii_isdigit(c) ? digits + 1 : 0;
    if (digits == 3) return true;
  }
  return false;
}

void CheckChatTemplate(absl::string_view source) {
  if (HasLargeNumber(source)) return;
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!chat.ok()) return CheckRefusal(chat.status());
  static const auto& messages = *new std::vector<ChatMessage>{{"system", "S"},
                                                              {"user", " \u00E9\u4F60 ab\n"},
                                                              {"assistant", "<think>x</think>\n\ny"},
                                                              {"user", ""},
                                                              {"assistant", "z"}};
  const absl::StatusOr<std::string> text = chat->Render({.messages = messages}, /*add_generation_prompt=*/false);
  if (!text.ok()) return CheckRefusal(text.status());
  SHALE_CHECK(IsUtf8(*text)) << *text;
  const absl::StatusOr<ChatText> turns = chat->RenderWithTurns({.messages = messages});
  if (!turns.ok()) return CheckRefusal(turns.status());
  SHALE_CHECK(turns->text == *text) << turns->text;
  size_t before = 0;
  for (const size_t turn : turns->turns) {
    SHALE_CHECK(before <= turn && turn <= turns->text.size()) << turn;
    before = turn;
  }
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckChatTemplate({reinterpret_cast<const char*>(data), size});
  return 0;
}
