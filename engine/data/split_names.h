// Tells the split that a file belongs to from its name, as files on the Hugging Face hub are named.
#pragma once

#include "absl/strings/string_view.h"

namespace shale {

enum class SplitName { kNone, kTrain, kValidation, kTest, kSeveral };

// Returns the split that the folders and the file of a relative path name: "data/train-00000-of-00002.jsonl",
// "test/a.txt", "my.dev.jsonl". A split is named by a whole word between characters that are no letters, in any case:
// train, training; validation, valid, val, dev; test, testing, eval, evaluation. These are the words of
// datasets.load_dataset. Returns kSeveral for train and another, and kTest for validation and test.
SplitName SplitNameOf(absl::string_view path);

// Returns "train", "validation" or "test". REQUIRES: it is one of these.
absl::string_view ToString(SplitName split);

}  // namespace shale
