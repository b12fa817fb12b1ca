#include "engine/text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr uint8_t kNotOther = kLetter | kNumber | kSpace;

// A character.
struct Seen {
  uint32_t code;
  uint8_t classes;   // CharacterClasses::Of(code)
  const char* next;  // Where the next character begins.
};

Seen See(const CharacterClasses& table, const char* at) {
  const char* next = at;
  const uint32_t code = NextCharacter(&next);
  return {code, table.Of(code), next};
}

// Returns the end of the run of characters that begins at `at` and whose classes within `mask` are exactly `wanted`.
const char* Run(const CharacterClasses& table, const char* at, const char* end, uint8_t mask, uint8_t wanted) {
  while (at < end) {
    const Seen seen = See(table, at);
    if ((seen.classes & mask) != wanted) break;
    at = seen.next;
  }
  return at;
}

// Matches \s+(?!\S)|\s+ at white space: all of a run but its last character, unless the run ends the text or is one
// character.
const char* Spaces(const CharacterClasses& table, const char* begin, const char* end) {
  const char* last = begin;
  const char* at = begin;
  while (at < end) {
    const Seen seen = See(table, at);
    if ((seen.classes & kSpace) == 0) return last == begin ? at : last;
    last = at;
    at = seen.next;
  }
  return at;
}

bool IsAny(char c, absl::string_view of) { return of.find(c) != absl::string_view::npos; }

// Returns the end of 's, 't, 're, 've, 'm, 'll or 'd at the apostrophe `begin`, or `begin` if it is none of them.
template <bool kAnyCase>
const char* Contraction(const char* begin, const char* end) {
  const auto letter = [&](int i) {
    const char c = begin + i < end ? begin[i] : '\0';
    return kAnyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1), second = letter(2);
  if (IsAny(first, "stmd")) return begin + 2;
  if ((IsAny(first, "rv") && second == 'e') || (first == 'l' && second == 'l')) return begin + 3;
  // U+017F, the long s, is an s in another case.
  if (kAnyCase && first == '\xC5' && second == '\xBF') return begin + 3;
  return begin;
}

const char* ScanGpt2(const char* begin, const char* end) {
  const CharacterClasses& table = CharacterClasses::Get();
  if (*begin == '\'') {
    if (const char* after = Contraction<false>(begin, end); after != begin) return after;
  }
  const char* at = begin + (*begin == ' ' && begin + 1 < end ? 1 : 0);
  const Seen seen = See(table, at);
  const uint8_t kind = seen.classes & kNotOther;
  if (kind == kSpace) return Spaces(table, begin, end);
  return Run(table, seen.next, end, kNotOther, kind);
}

template <int kDigits>
const char* ScanLlama3(const char* begin, const char* end) {
  const CharacterClasses& table = CharacterClasses::Get();
  if (*begin == '\'') {
    if (const char* after = Contraction<true>(begin, end); after != begin) return after;
  }
  const Seen first = See(table, begin);
  if (first.classes & kLetter) return Run(table, first.next, end, kLetter, kLetter);
  if (first.classes & kNumber) {
    const char* at = first.next;
    for (int i = 1; i < kDigits && at < end; ++i) {
      const Seen seen = See(table, at);
      if ((seen.classes & kNumber) == 0) break;
      at = seen.next;
    }
    return at;
  }
  const bool newline = first.code == '\n' || first.code == '\r';
  Seen second = {0, kSpace, first.next};
  if (first.next < end) second = See(table, first.next);
  if (!newline && (second.classes & kLetter)) return Run(table, second.next, end, kLetter, kLetter);
  if ((first.classes & kSpace) == 0 || (first.code == ' ' && (second.classes & kNotOther) == 0)) {
    const char* at = Run(table, first.next, end, kNotOther, 0);
    while (at < end && (*at == '\r' || *at == '\n')) ++at;
    return at;
  }
  // \s*[\r\n]+ ends behind the last line end of a run of white space.
  const char* behind_line = nullptr;
  for (const char* at = begin; at < end;) {
    const Seen seen = See(table, at);
    if ((seen.classes & kSpace) == 0) break;
    at = seen.next;
    if (seen.code == '\n' || seen.code == '\r') behind_line = at;
  }
  return behind_line != nullptr ? behind_line : Spaces(table, begin, end);
}

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonPart& part) {
  static constexpr std::pair<absl::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  SHALE_ASSIGN_OR_RETURN(const std::string name, part.Text("behavior"));
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  return part.Error(absl::StrCat("behavior: found ", ShownJson(name),
                                 "; allowed: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous"));
}

// Merges or removes the matches among the parts of a text, as `behavior` says.
std::vector<Match> Merged(std::vector<Match> parts, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kIsolated) return parts;
  if (behavior == SplitBehavior::kRemoved) {
    parts.erase(std::remove_if(parts.begin(), parts.end(), [](const Match& part) { return part.is_match; }),
                parts.end());
    return parts;
  }
  const bool from_end = behavior == SplitBehavior::kMergedWithNext;
  if (from_end) std::reverse(parts.begin(), parts.end());
  std::vector<Match> merged;
  bool previous = false;
  for (const Match& part : parts) {
    const bool joins = behavior == SplitBehavior::kContiguous ? part.is_match == previous : part.is_match && !previous;
    previous = part.is_match;
    if (joins && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, part.begin);
      merged.back().end = std::max(merged.back().end, part.end);
    } else {
      merged.push_back(part);
    }
  }
  if (from_end) std::reverse(merged.begin(), merged.end());
  return merged;
}

void Append(absl::string_view text, const std::vector<Match>& parts, std::vector<std::string>* out) {
  for (const Match& part : parts) out->emplace_back(text.substr(part.begin, part.end - part.begin));
}

std::vector<Match> Scan(Scanner scanner, absl::string_view text) {
  std::vector<Match> parts;
  for (size_t at = 0; at < text.size(); at = parts.back().end) {
    const char* end = scanner(text.data() + at, text.data() + text.size());
    parts.push_back({at, static_cast<size_t>(end - text.data()), true});
  }
  return parts;
}

std::vector<Match> FindClass(absl::string_view text, uint8_t classes) {
  const CharacterClasses& table = CharacterClasses::Get();
  std::vector<Match> parts;
  size_t plain = 0;
  const char* at = text.data();
  while (at < text.data() + text.size()) {
    const size_t begin = at - text.data();
    if ((table.Of(NextCharacter(&at)) & classes) == 0) continue;
    const size_t end = at - text.data();
    if (plain < begin) parts.push_back({plain, begin, false});
    parts.push_back({begin, end, true});
    plain = end;
  }
  if (plain < text.size()) parts.push_back({plain, text.size(), false});
  return parts;
}

}  // namespace

Scanner FindScanner(absl::string_view pattern) {
  if (pattern == kGpt2Pattern) return ScanGpt2;
  if (pattern == kLlama3Pattern) return ScanLlama3<3>;
  if (pattern == kQwen2Pattern) return ScanLlama3<1>;
  return nullptr;
}

absl::StatusOr<PreTokenizer::Step> PreTokenizer::ReadStep(const JsonPart& part) {
  SHALE_ASSIGN_OR_RETURN(const std::string type, part.Type());
  if (type == "ByteLevel") {
    SHALE_RETURN_IF_ERROR(part.Check({"add_prefix_space", "trim_offsets", "use_regex"}));
    SHALE_ASSIGN_OR_RETURN(const bool add_prefix_space, part.Flag("add_prefix_space", true));
    SHALE_ASSIGN_OR_RETURN(const bool use_regex, part.Flag("use_regex", true));
    return ByteLevel{add_prefix_space, use_regex ? FindScanner(kGpt2Pattern) : nullptr};
  }
  if (type == "Split") {
    SHALE_RETURN_IF_ERROR(part.Check({"pattern", "behavior", "invert"}));
    std::string text;
    SHALE_ASSIGN_OR_RETURN(Regex pattern, part.Pattern("pattern", &text));
    SHALE_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(part));
    SHALE_ASSIGN_OR_RETURN(const bool invert, part.Flag("invert", false));
    return SplitAt{std::move(pattern), FindScanner(text), behavior, invert};
  }
  if (type == "Digits") {
    SHALE_RETURN_IF_ERROR(part.Check({"individual_digits"}));
    SHALE_ASSIGN_OR_RETURN(const bool individual, part.Flag("individual_digits", false));
    return SplitAtClass{kNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous};
  }
  if (type == "Punctuation") {
    SHALE_RETURN_IF_ERROR(part.Check({"behavior"}));
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (!part.Member("behavior").is_null()) {
      SHALE_ASSIGN_OR_RETURN(behavior, ReadBehavior(part));
    }
    return SplitAtClass{kPunctuation, behavior};
  }
  if (type == "Metaspace") {
    SHALE_RETURN_IF_ERROR(part.Check({"replacement", "prepend_scheme", "split"}));
    Metaspace step;
    SHALE_ASSIGN_OR_RETURN(step.replacement, part.Text("replacement"));
    if (!IsOneCharacter(step.replacement)) {
      return part.Error("replacement: wanted one character");
    }
    SHALE_ASSIGN_OR_RETURN(step.split, part.Flag("split", true));
    const std::string scheme =
        part.Member("prepend_scheme").is_null() ? "always" : part.Text("prepend_scheme").value_or("");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      return part.Error("prepend_scheme: allowed: always, first, never");
    }
    step.prepend = scheme == "always"  ? Metaspace::Prepend::kAlways
                   : scheme == "first" ? Metaspace::Prepend::kFirst
                                       : Metaspace::Prepend::kNever;
    return step;
  }
  return part.Error(absl::StrCat("the pre-tokenizer ", ShownJson(type), " is not supported; supported: ByteLevel, ",
                                 "Split, Digits, Punctuation, Metaspace, Sequence"));
}

bool PreTokenizer::KeepsStart(const Step& step) {
  if (const auto* split = std::get_if<SplitAt>(&step)) return split->behavior != SplitBehavior::kRemoved;
  if (const auto* split = std::get_if<SplitAtClass>(&step)) return split->behavior != SplitBehavior::kRemoved;
  return false;
}

absl::StatusOr<PreTokenizer> PreTokenizer::Read(const JsonPart& part) {
  std::vector<JsonPart> parts;
  SHALE_RETURN_IF_ERROR(Flatten(part, "pretokenizers", &parts));
  PreTokenizer result;
  for (const JsonPart& p : parts) {
    absl::StatusOr<Step> step = ReadStep(p);
    if (!step.ok()) return step.status();
    if (std::holds_alternative<ByteLevel>(*step)) {
      if (result.byte_level_) return p.Error("ByteLevel occurs twice");
      result.byte_level_ = true;
    } else if (result.byte_level_ && std::holds_alternative<Metaspace>(*step)) {
      return p.Error("Metaspace is not supported behind ByteLevel");  // It would add what stands for no byte.
    }
    if (const auto* mark = std::get_if<Metaspace>(&*step); mark && mark->prepend == Metaspace::Prepend::kFirst) {
      if (!std::all_of(result.steps_.begin(), result.steps_.end(), KeepsStart)) {
        return p.Error(
            "Metaspace with prepend_scheme \"first\" is not supported behind Metaspace, nor behind a step that "
            "removes its matches");
      }
      result.marks_start_ = true;
      result.marks_start_of_pieces_ = !result.steps_.empty();
    }
    result.steps_.push_back(*std::move(step));
  }
  // A scanner can replace ByteLevel alone, and ByteLevel after one split whose matches leave no gaps.
  if (result.byte_level_ && result.steps_.size() <= 2) {
    const auto* last = std::get_if<ByteLevel>(&result.steps_.back());
    if (last != nullptr && !last->add_prefix_space) {
      const auto* split = std::get_if<SplitAt>(&result.steps_.front());
      if (result.steps_.size() == 1) {
        result.scanner_ = last->scanner;
      } else if (split != nullptr && last->scanner == nullptr && !split->invert &&
                 split->behavior == SplitBehavior::kIsolated) {
        result.scanner_ = split->scanner;
      }
    }
  }
  return result;
}

absl::Status PreTokenizer::Apply(const Step& step, const std::string& text, bool at_start, TextBudget& budget,
                                 std::vector<std::string>* out) {
  if (const auto* byte_level = std::get_if<ByteLevel>(&step)) {
    const std::string prefixed = byte_level->add_prefix_space && !absl::StartsWith(text, " ") ? " " + text : text;
    std::vector<Match> parts = {{0, prefixed.size(), true}};
    if (byte_level->scanner != nullptr) parts = Scan(byte_level->scanner, prefixed);
    for (const Match& part : parts) {
      out->push_back(BytesToCharacters(absl::string_view(prefixed).substr(part.begin, part.end - part.begin)));
    }
  } else if (const auto* split = std::get_if<SplitAt>(&step)) {
    std::vector<Match> parts;
    if (split->scanner != nullptr) {
      parts = Scan(split->scanner, text);
    } else {
      SHALE_RETURN_IF_ERROR(split->pattern.Find(text, budget, &parts));
    }
    if (split->invert) {
      for (Match& part : parts) part.is_match = !part.is_match;
    }
    Append(text, Merged(std::move(parts), split->behavior), out);
  } else if (const auto* at_class = std::get_if<SplitAtClass>(&step)) {
    Append(text, Merged(FindClass(text, at_class->classes), at_class->behavior), out);
  } else {
    const auto& meta = std::get<Metaspace>(step);
    std::string replaced = absl::StrReplaceAll(text, {{" ", meta.replacement}});
    const bool prepends =
        meta.prepend == Metaspace::Prepend::kAlways || (meta.prepend == Metaspace::Prepend::kFirst && at_start);
    if (prepends && !absl::StartsWith(replaced, meta.replacement)) replaced = meta.replacement + replaced;
    if (!meta.split) {
      out->push_back(std::move(replaced));
      return absl::OkStatus();
    }
    std::vector<Match> parts;
    SHALE_ASSIGN_OR_RETURN(const Regex mark, Regex::Literal(meta.replacement));
    SHALE_RETURN_IF_ERROR(mark.Find(replaced, budget, &parts));
    Append(replaced, Merged(std::move(parts), SplitBehavior::kMergedWithNext), out);
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::Split(TextBudget& budget, Pieces* pieces) const {
  for (const Step& step : steps_) {
    std::vector<std::string> next;
    size_t bytes = 0, counted = 0;
    for (size_t i = 0; i < pieces->texts.size(); ++i) {
      if (pieces->texts[i].empty()) continue;
      SHALE_RETURN_IF_ERROR(Apply(step, pieces->texts[i], pieces->at_start && i == 0, budget, &next));
      for (; counted < next.size(); ++counted) bytes += next[counted].size();
      SHALE_RETURN_IF_ERROR(budget.CheckPieces(next.size(), bytes));
      SHALE_RETURN_IF_ERROR(budget.CheckTime());
    }
    pieces->texts = std::move(next);
  }
  if (byte_level_) {
    for (std::string& text : pieces->texts) {
      std::string bytes;
      SHALE_CHECK(CharactersToBytes(text, &bytes)) << text;
      text = std::move(bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
