// Fuzzes chat templates. A template is refused, or makes text of UTF-8 of conversations, the same each time, with turns
// that rise and lie in it.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/utf8.h"
#include "engine/tokenize/chat_template.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

void Check(absl::string_view source) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!chat.ok()) return CheckRefusal(chat.status());
  const std::vector<ChatMessage> messages = {{"system", "S"},
                                             {"user", " \u00E9\u4F60 ab\n"},
                                             {"assistant", "<think>x</think>\n\ny", {{"name", "n"}}},
                                             {"user", ""},
                                             {"assistant", "z"}};
  for (const bool prompt : {false, true}) {
    const absl::StatusOr<std::string> text = chat->Render(messages, prompt);
    if (!text.ok()) {
      CheckRefusal(text.status());
      continue;
    }
    SHALE_CHECK(IsUtf8(*text)) << *text;
    SHALE_CHECK(*chat->Render(messages, prompt) == *text);
  }
  const absl::StatusOr<ChatText> turns = chat->RenderWithTurns(messages);
  if (!turns.ok()) return CheckRefusal(turns.status());
  size_t before = 0;
  for (const size_t turn : turns->turns) {
    SHALE_CHECK(before <= turn && turn <= turns->text.size()) << turn;
    before = turn;
  }
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
