#include "engine/train/step_note.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace shale {

std::string Serialize(const StepNote& note) {
  std::string message = absl::StrCat(note.stop ? 1 : 0, " ", note.peak_bytes);
  for (const auto& [rank, waited] : note.waited_ns) absl::StrAppend(&message, " ", rank, " ", waited);
  return message;
}

absl::StatusOr<StepNote> ParseStepNote(absl::string_view message) {
  std::vector<int64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(message, ' ')) {
    if (!absl::SimpleAtoi(word, &numbers.emplace_back())) numbers.clear();
  }
  if (numbers.size() < 2 || numbers.size() % 2 != 0) {
    return absl::InternalError("a process sent no note after the step");
  }
  StepNote note{.stop = numbers[0] != 0, .peak_bytes = numbers[1]};
  for (size_t i = 2; i < numbers.size(); i += 2) note.waited_ns.emplace_back(numbers[i], numbers[i + 1]);
  return note;
}

}  // namespace shale
