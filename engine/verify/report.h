// What a verification found.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

enum class VerifyOutcome {
  kHolds,
  kFails,
  kNotRun,  // The job has nothing that this could check, or this machine cannot run it. VerifyRow::remark says why.
};

// One check.
struct VerifyRow {
  std::string check;    // What was compared: "4 micro-batches".
  std::string against;  // With what: "one batch of 16".
  VerifyOutcome outcome = VerifyOutcome::kHolds;
  double difference = 0;  // The largest that was found. What it is relative to depends on the check.
  double tolerance = 0;   // The largest that is allowed. 0: all bits must be the same.
  // After kFails: what is to blame (a parameter, a sample, an op), with the numbers, and where to look. After kNotRun:
  // why. After kHolds, what the check covered, where the columns do not say it; may be empty.
  std::string remark;
};

struct VerifyReport {
  std::vector<VerifyRow> rows;
  // What was made smaller than the job: one line each.
  std::vector<std::string> shrunk;
  double seconds = 0;

  // Returns whether no check failed.
  bool holds() const;
  // Returns the table: its head, a line for each check, and the remarks.
  std::string Text() const;
  // Returns what stands under the table: what was shrunk, the remarks of the checks with the failures last, and a line
  // with the result.
  std::string Remarks() const;
};

// Returns the line of one check in the table, without its remark. It has no line end.
std::string VerifyLine(const VerifyRow& row);

// Returns the head of the table.
std::string VerifyHead();

}  // namespace shale
