#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/verify.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

std::string Columns(absl::string_view check, absl::string_view against, absl::string_view difference,
                    absl::string_view tolerance, absl::string_view result) {
  return absl::StrFormat("  %-32s %-30s %11s %11s  %s", check, against, difference, tolerance, result);
}

std::string NumberOf(double number) { return number == 0 ? "0" : absl::StrFormat("%.2e", number); }

}  // namespace

bool VerifyReport::holds() const {
  return std::none_of(rows.begin(), rows.end(),
                      [](const VerifyRow& row) { return row.outcome == VerifyOutcome::kFails; });
}

std::string VerifyHead() { return Columns("check", "against", "difference", "tolerance", "result"); }

std::string VerifyLine(const VerifyRow& row) {
  if (row.outcome == VerifyOutcome::kNotRun) return Columns(row.check, row.against, "-", "-", "not run");
  return Columns(row.check, row.against, NumberOf(row.difference), NumberOf(row.tolerance),
                 row.outcome == VerifyOutcome::kFails ? "FAILS" : "ok");
}

std::string VerifyReport::Text() const {
  std::string text = absl::StrCat(VerifyHead(), "\n");
  for (const VerifyRow& row : rows) absl::StrAppend(&text, VerifyLine(row), "\n");
  return absl::StrCat(text, Remarks());
}

std::string VerifyReport::Remarks() const {
  std::string text;
  for (const std::string& line : shrunk) absl::StrAppend(&text, "smaller than the job: ", line, "\n");
  if (!time.empty()) absl::StrAppend(&text, time, "\n");
  std::map<VerifyOutcome, int> count;
  for (const auto& [outcome, word] : {std::pair(VerifyOutcome::kHolds, "ok"),
                                      {VerifyOutcome::kNotRun, "not run"},
                                      {VerifyOutcome::kFails, "FAILS"}}) {
    for (const VerifyRow& row : rows) {
      if (row.outcome != outcome) continue;
      ++count[outcome];
      if (!row.remark.empty()) absl::StrAppend(&text, Paragraph(absl::StrCat(word, ": ", row.check, ": ", row.remark)));
    }
  }
  absl::StrAppend(&text, holds() ? "all checks hold: " : "SOMETHING DIFFERS: ", count[VerifyOutcome::kHolds], " hold, ",
                  count[VerifyOutcome::kFails], " fail, ", count[VerifyOutcome::kNotRun], " not run, in ",
                  FormatDuration(seconds), "\n");
  return text;
}

}  // namespace shale
