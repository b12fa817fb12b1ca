#include "engine/text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <utility>

#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns true only if NFC leaves `text` as it is. May return false for some of the texts that NFC leaves as they are.
bool IsPlain(absl::string_view text) {
  const CharacterClasses& classes = CharacterClasses::Get();
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    if (classes.Of(NextCharacter(&at)) & kNotPlain) return false;
  }
  return true;
}

absl::StatusOr<std::string> NormalForm(absl::string_view text, bool compatibility, bool compose) {
  const int options =
      UTF8PROC_STABLE | (compatibility ? UTF8PROC_COMPAT : 0) | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), text.size(),
                                              &result, static_cast<utf8proc_option_t>(options));
  if (bytes < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot normalize a text of ", text.size(), " bytes: ", utf8proc_errmsg(bytes)));
  }
  std::string normal(reinterpret_cast<const char*>(result), bytes);
  std::free(result);
  return normal;
}

}  // namespace

absl::StatusOr<std::string> ReplaceMatches(const Regex& pattern, absl::string_view content, absl::string_view text,
                                           TextBudget& budget) {
  std::string result;
  SHALE_RETURN_IF_ERROR(pattern.ForEach(text, budget, [&](const Match& part) {
    const absl::string_view next = part.is_match ? content : text.substr(part.begin, part.end - part.begin);
    SHALE_RETURN_IF_ERROR(budget.CheckBytes(result.size() + next.size()));
    absl::StrAppend(&result, next);
    return absl::OkStatus();
  }));
  return result;
}

absl::StatusOr<Normalizer::Step> Normalizer::ReadStep(const JsonPart& part) {
  SHALE_ASSIGN_OR_RETURN(const std::string type, part.Type());
  if (type == "Prepend") {
    SHALE_RETURN_IF_ERROR(part.Check({"prepend"}));
    SHALE_ASSIGN_OR_RETURN(std::string text, part.Text("prepend"));
    if (text.empty()) return part.Error("prepend is empty, and the tokenizers library then repeats a character");
    return Prepend{std::move(text)};
  }
  if (type == "Replace") {
    SHALE_RETURN_IF_ERROR(part.Check({"pattern", "content"}));
    SHALE_ASSIGN_OR_RETURN(Regex pattern, part.Pattern("pattern"));
    SHALE_ASSIGN_OR_RETURN(std::string content, part.Text("content"));
    const Json& literal = part.Member("pattern").Member("String").json();
    const bool keeps_start = !content.empty() && literal.is_string() && IsOneCharacter(literal.get<std::string>());
    return Replace{std::move(pattern), std::move(content), keeps_start};
  }
  SHALE_RETURN_IF_ERROR(part.Check({}));
  if (type == "NFC") return Unicode{.compatibility = false, .compose = true};
  if (type == "NFD") return Unicode{.compatibility = false, .compose = false};
  if (type == "NFKC") return Unicode{.compatibility = true, .compose = true};
  if (type == "NFKD") return Unicode{.compatibility = true, .compose = false};
  return part.Error(absl::StrCat("the normalizer ", ShownJson(type),
                                 " is not supported; supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence"));
}

absl::StatusOr<Normalizer> Normalizer::Read(const JsonPart& part) {
  std::vector<JsonPart> parts;
  SHALE_RETURN_IF_ERROR(Flatten(part, "normalizers", &parts));
  Normalizer normalizer;
  for (const JsonPart& step : parts) {
    // A refused type is named before its members are.
    absl::StatusOr<Step> read = ReadStep(step);
    if (!read.ok()) return read.status();
    normalizer.steps_.push_back(*std::move(read));
  }
  return normalizer;
}

bool Normalizer::by_line() const {
  for (const Step& step : steps_) {
    if (!std::holds_alternative<Unicode>(step)) return false;
  }
  return true;
}

bool Normalizer::keeps_start() const {
  for (const Step& step : steps_) {
    if (const auto* replace = std::get_if<Replace>(&step); replace != nullptr && !replace->keeps_start) return false;
  }
  return true;
}

absl::StatusOr<absl::string_view> Normalizer::Normalize(absl::string_view text, TextBudget& budget,
                                                        std::string* buffer) const {
  absl::string_view now = text;
  for (const Step& step : steps_) {
    if (const auto* unicode = std::get_if<Unicode>(&step)) {
      if (unicode->compose && !unicode->compatibility && IsPlain(now)) continue;
      SHALE_RETURN_IF_ERROR(budget.CheckTime());
      SHALE_ASSIGN_OR_RETURN(std::string normal, NormalForm(now, unicode->compatibility, unicode->compose));
      SHALE_RETURN_IF_ERROR(budget.CheckBytes(normal.size()));
      *buffer = std::move(normal);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (now.empty()) continue;
      SHALE_RETURN_IF_ERROR(budget.CheckBytes(prepend->text.size() + now.size()));
      *buffer = absl::StrCat(prepend->text, now);
    } else {
      const auto& replace = std::get<Replace>(step);
      SHALE_ASSIGN_OR_RETURN(std::string replaced, ReplaceMatches(replace.pattern, replace.content, now, budget));
      *buffer = std::move(replaced);
    }
    now = *buffer;
  }
  return now;
}

}  // namespace shale
