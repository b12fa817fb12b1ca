#include "engine/data/split_names.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr std::pair<absl::string_view, SplitName> kSplitWords[] = {
    {"train", SplitName::kTrain},      {"training", SplitName::kTrain}, {"validation", SplitName::kValidation},
    {"valid", SplitName::kValidation}, {"val", SplitName::kValidation}, {"dev", SplitName::kValidation},
    {"test", SplitName::kTest},        {"testing", SplitName::kTest},   {"eval", SplitName::kTest},
    {"evaluation", SplitName::kTest},
};

SplitName Both(SplitName a, SplitName b) {
  if (a == SplitName::kNone || a == b) return b;
  if (b == SplitName::kNone) return a;
  const auto is_held_out = [](SplitName split) { return split == SplitName::kValidation || split == SplitName::kTest; };
  return is_held_out(a) && is_held_out(b) ? SplitName::kTest : SplitName::kSeveral;
}

// Returns the split that the words of a name say.
SplitName SplitOfWords(absl::string_view name) {
  SplitName split = SplitName::kNone;
  for (const absl::string_view word : absl::StrSplit(name, absl::ByAnyChar("-._ 0123456789"))) {
    for (const auto& [known, of] : kSplitWords) {
      if (absl::AsciiStrToLower(word) == known) split = Both(split, of);
    }
  }
  return split;
}

}  // namespace

SplitName SplitNameOf(absl::string_view path) {
  SplitName split = SplitName::kNone;
  for (const absl::string_view name : absl::StrSplit(path, '/')) split = Both(split, SplitOfWords(name));
  return split;
}

absl::string_view ToString(SplitName split) {
  switch (split) {
    case SplitName::kTrain: return "train";
    case SplitName::kValidation: return "validation";
    case SplitName::kTest: return "test";
    default: SHALE_CHECK(false) << "no split"; return "";
  }
}

}  // namespace shale
