// Fuzzes tokenizer.json. A file is refused, or gives a tokenizer whose tokens lie in its vocabulary and whose stream
// gives the text of all tokens, cut between characters.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/strings/utf8.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr absl::string_view kTexts[] = {
    "",
    "The quick brown fox's 12345 jumps!\r\n\n  over  ",
    "\u00E9t\u00E9 \u4F60\u597D \U0001F600\u200D\U0001F525 <|endoftext|></s>",
    "a\xFF\xC3(\xF0\x9F",
};

void CheckText(const Tokenizer& tokenizer, Encoder& encoder, absl::string_view text) {
  for (const bool special : {false, true}) {
    std::vector<int32_t> tokens;
    const EncodeOptions options = {.add_prefix_and_suffix = special, .special_tokens_in_text = special};
    const absl::Status status = encoder.Encode(text, options, &tokens);
    if (!status.ok()) {
      // Bounds, or added tokens of which the library fails at this text (AddedTokens::Split).
      SHALE_CHECK(absl::IsResourceExhausted(status) || absl::IsInvalidArgument(status)) << status;
      return;
    }
    for (const int32_t token : tokens) SHALE_CHECK(token >= 0 && token < tokenizer.vocabulary()) << token;
    TokenStream stream(tokenizer, /*skip_special=*/special);
    std::string shown;
    for (const int32_t token : tokens) {
      const std::string piece = stream.Push(token);
      SHALE_CHECK(IsUtf8(piece)) << piece;
      shown += piece;
    }
    shown += stream.Finish();
    SHALE_CHECK(IsUtf8(shown)) << shown;
    SHALE_CHECK(IsUtf8(tokenizer.Decode(tokens, special)));
  }
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view json(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<shale::Tokenizer> tokenizer = shale::Tokenizer::FromJson(json);
  if (!tokenizer.ok()) {
    shale::CheckRefusal(tokenizer.status());
    return 0;
  }
  shale::Encoder encoder(*tokenizer);
  for (const absl::string_view text : shale::kTexts) shale::CheckText(*tokenizer, encoder, text);
  return 0;
}
