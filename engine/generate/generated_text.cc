#include "engine/generate/generated_text.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<std::vector<int32_t>> PromptTokens(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<int32_t> tokens = tokenizer.prefix();
  SHALE_RETURN_IF_ERROR(Encoder(tokenizer).Encode(text.empty() && tokens.empty() ? "\n" : text, {}, &tokens));
  return tokens;
}

GeneratedText::GeneratedText(const Tokenizer* tokenizer, bool is_text, bool skip_special,
                             std::vector<std::string> stop_strings)
    : is_text_(is_text), skip_special_(skip_special), stops_(std::move(stop_strings)) {
  if (tokenizer != nullptr) tokens_.emplace(*tokenizer, skip_special);
}

std::string GeneratedText::TextOf(int32_t token) {
  if (tokens_) return tokens_->Push(token);
  return is_text_ ? bytes_.Push(static_cast<uint8_t>(token)) : absl::StrCat(token, " ");
}

std::string GeneratedText::PushPrompt(int32_t token, bool written) {
  if (tokens_) tokens_->SkipSpecial(!written);
  std::string text = TextOf(token);
  if (tokens_) tokens_->SkipSpecial(skip_special_);
  return text;
}

std::string GeneratedText::Push(int32_t token) { return stops_.Push(TextOf(token)); }

std::string GeneratedText::Finish() {
  const std::string rest = stops_.Push(tokens_ ? tokens_->Finish() : bytes_.Finish());
  return rest + stops_.Finish();
}

}  // namespace shale
