#include "engine/run/generate/generated_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  strings_.erase(std::remove(strings_.begin(), strings_.end(), ""), strings_.end());
}

std::string StopStrings::Push(absl::string_view piece) {
  if (stopped_) return "";
  held_.append(piece.data(), piece.size());
  size_t stop = std::string::npos;
  for (const std::string& string : strings_) stop = std::min(stop, held_.find(string));
  stopped_ = stop != std::string::npos;
  // The earliest place from which the rest of the text is the beginning of a stop string.
  size_t end = stopped_ ? stop : held_.size();
  for (size_t begin = 0; !stopped_ && begin < end; ++begin) {
    const absl::string_view rest = absl::string_view(held_).substr(begin);
    const auto begins = [&](const std::string& string) { return absl::StartsWith(string, rest); };
    if (std::any_of(strings_.begin(), strings_.end(), begins)) end = begin;
  }
  std::string shown = held_.substr(0, end);
  held_.erase(0, stopped_ ? std::string::npos : end);
  return shown;
}

std::string StopStrings::Finish() { return std::exchange(held_, ""); }

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
