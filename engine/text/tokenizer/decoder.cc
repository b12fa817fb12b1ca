#include "engine/text/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "engine/strings/utf8.h"
#include "engine/text/tokenizer/character.h"
#include "engine/text/tokenizer/normalizer.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
// The most characters that Strip may remove. It holds back so many at the end of a text.
constexpr int64_t kMaxStrip = 1024;
// How many times as long the steps of Replace together may make a token.
constexpr size_t kMaxGrowth = 256;

// Returns the byte of a token like "<0x0A>", or -1.
int ByteOf(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    if (!isxdigit(static_cast<unsigned char>(c))) return -1;
    byte = byte * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return byte;
}

}  // namespace

absl::StatusOr<Decoder::Step> Decoder::ReadStep(const JsonPart& part, bool fused) {
  SHALE_ASSIGN_OR_RETURN(const std::string type, part.Type());
  if (type == "ByteLevel") {
    SHALE_RETURN_IF_ERROR(part.Check({"add_prefix_space", "trim_offsets", "use_regex"}));
    if (fused) return part.Error("ByteLevel is not supported behind Fuse or ByteLevel");
    return ByteLevel();
  }
  if (type == "Fuse") {
    SHALE_RETURN_IF_ERROR(part.Check({}));
    return Fuse();
  }
  if (type == "Strip") {
    SHALE_RETURN_IF_ERROR(part.Check({"content", "start", "stop"}));
    Strip strip{.fused = fused};
    SHALE_ASSIGN_OR_RETURN(strip.content, part.Text("content"));
    SHALE_ASSIGN_OR_RETURN(strip.start, part.Integer("start"));
    SHALE_ASSIGN_OR_RETURN(strip.stop, part.Integer("stop"));
    if (!IsOneCharacter(strip.content)) {
      return part.Error("content: wanted one character");
    }
    if (std::max(strip.start, strip.stop) > kMaxStrip) return part.Error("start or stop is too large");
    return strip;
  }
  if (fused && (type == "ByteFallback" || type == "Replace" || type == "Metaspace")) {
    return part.Error(absl::StrCat(type, " is not supported behind Fuse or ByteLevel"));
  }
  if (type == "ByteFallback") {
    SHALE_RETURN_IF_ERROR(part.Check({}));
    return ByteFallback();
  }
  if (type == "Replace") {
    SHALE_RETURN_IF_ERROR(part.Check({"pattern", "content"}));
    SHALE_ASSIGN_OR_RETURN(Regex pattern, part.Pattern("pattern"));
    SHALE_ASSIGN_OR_RETURN(std::string content, part.Text("content"));
    return Replace{std::move(pattern), std::move(content)};
  }
  if (type == "Metaspace") {
    SHALE_RETURN_IF_ERROR(part.Check({"replacement", "prepend_scheme", "split"}));
    SHALE_ASSIGN_OR_RETURN(std::string replacement, part.Text("replacement"));
    const Json& scheme = part.Member("prepend_scheme").json();
    if (replacement.empty()) return part.Error("replacement: wanted one character");
    return Metaspace{std::move(replacement), scheme != "never"};
  }
  return part.Error(absl::StrCat("the decoder ", ShownJson(type), " is not supported; supported: ByteLevel, ",
                                 "ByteFallback, Fuse, Strip, Replace, Metaspace, Sequence"));
}

absl::StatusOr<Decoder> Decoder::Read(const JsonPart& part) {
  Decoder decoder;
  std::vector<JsonPart> parts;
  SHALE_RETURN_IF_ERROR(Flatten(part, "decoders", &parts));
  bool fused = false;
  size_t growth = 1;
  for (const JsonPart& p : parts) {
    absl::StatusOr<Step> step = ReadStep(p, fused);
    if (!step.ok()) return step.status();
    if (const auto* replace = std::get_if<Replace>(&*step))
      growth *= std::clamp<size_t>(replace->content.size(), 1, 512);
    if (growth > kMaxGrowth) {
      return p.Error(absl::StrCat("the steps so far make a token more than ", kMaxGrowth, " times as long"));
    }
    fused = fused || std::holds_alternative<Fuse>(*step) || std::holds_alternative<ByteLevel>(*step);
    decoder.steps_.push_back(*std::move(step));
  }
  if (part.is_null()) decoder.steps_.push_back(Join());
  return decoder;
}

std::string Decoder::Stream::Push(absl::string_view token) {
  std::string out;
  Feed(0, token, &out);
  return out;
}

std::string Decoder::Stream::Finish() {
  std::string out;
  End(0, &out);
  return out;
}

void Decoder::Stream::Feed(size_t step, absl::string_view piece, std::string* out) {
  if (step == states_.size()) return absl::StrAppend(out, piece);
  State& state = states_[step];
  const bool first = std::exchange(state.first, false);
  const Step& what = decoder_->steps_[step];
  if (std::holds_alternative<ByteLevel>(what)) {
    std::string bytes;
    // A token with other characters, such as an added one, is text.
    if (!CharactersToBytes(piece, &bytes)) bytes = std::string(piece);
    std::string text;
    for (const char byte : bytes) text += state.bytes.Push(static_cast<uint8_t>(byte));
    if (!text.empty()) Feed(step + 1, text, out);
  } else if (std::holds_alternative<ByteFallback>(what)) {
    const int byte = ByteOf(piece);
    if (byte >= 0) return FeedBytes(step, static_cast<uint8_t>(byte), out);
    EndBytes(step, out);
    Feed(step + 1, piece, out);
  } else if (std::holds_alternative<Join>(what)) {
    Feed(step + 1, absl::StrCat(first ? "" : " ", piece), out);
  } else if (std::holds_alternative<Strip>(what)) {
    FeedStrip(step, piece, out);
  } else if (const auto* replace = std::get_if<Replace>(&what)) {
    // Tokens are short and kMaxGrowth is small. If the budget of a token were too small, the token would stay as it is.
    TextBudget budget(piece.size());
    Feed(step + 1, ReplaceMatches(replace->pattern, replace->content, piece, budget).value_or(std::string(piece)), out);
  } else if (const auto* meta = std::get_if<Metaspace>(&what)) {
    const absl::string_view by = first && meta->prepends ? "" : " ";
    Feed(step + 1, absl::StrReplaceAll(piece, {{meta->replacement, by}}), out);
  } else {
    Feed(step + 1, piece, out);
  }
}

void Decoder::Stream::FeedBytes(size_t step, uint8_t byte, std::string* out) {
  State& state = states_[step];
  state.pending.push_back(static_cast<char>(byte));
  if (bytes_ == Bytes::kTogether) return;
  Utf8Validator validator;
  state.ill_formed = state.ill_formed || !validator.Feed(state.pending);
  if (state.ill_formed || validator.Finish()) {
    const bool ill_formed = state.ill_formed;
    EndBytes(step, out);
    state.ill_formed = ill_formed;  // Holds for the other byte tokens of the run, too.
  }
}

void Decoder::Stream::EndBytes(size_t step, std::string* out) {
  State& state = states_[step];
  const std::string bytes = std::exchange(state.pending, "");
  const bool ill_formed = std::exchange(state.ill_formed, false) || !IsUtf8(bytes);
  if (bytes.empty()) return;
  if (!ill_formed) return Feed(step + 1, bytes, out);
  for (size_t i = 0; i < bytes.size(); ++i) Feed(step + 1, kReplacement, out);
}

void Decoder::Stream::FeedStrip(size_t step, absl::string_view piece, std::string* out) {
  const auto& strip = std::get<Strip>(decoder_->steps_[step]);
  State& state = states_[step];
  if (!strip.fused) state.stripped = 0;
  while (state.stripped < strip.start && absl::ConsumePrefix(&piece, strip.content)) ++state.stripped;
  if (!piece.empty()) state.stripped = strip.start;
  if (!strip.fused) {
    for (int64_t i = 0; i < strip.stop && absl::ConsumeSuffix(&piece, strip.content); ++i) {
    }
    return Feed(step + 1, piece, out);
  }
  // Holds back the last characters that may be stripped.
  std::string text = state.pending + std::string(piece);
  absl::string_view kept = text;
  for (int64_t i = 0; i < strip.stop && absl::ConsumeSuffix(&kept, strip.content); ++i) {
  }
  state.pending = text.substr(kept.size());
  if (!kept.empty()) Feed(step + 1, kept, out);
}

void Decoder::Stream::End(size_t step, std::string* out) {
  if (step == states_.size()) return;
  const Step& what = decoder_->steps_[step];
  if (std::holds_alternative<ByteFallback>(what)) EndBytes(step, out);
  if (std::holds_alternative<ByteLevel>(what)) {
    if (const std::string rest = states_[step].bytes.Finish(); !rest.empty()) Feed(step + 1, rest, out);
  }
  End(step + 1, out);
}

}  // namespace shale
