// ResultLines: the results of a bench, for people and for programs.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/files/io/json_lines.h"
#include "kernels/check.h"

namespace shale {

// Prints each result and writes it at once: whatever ends the program, what it measured is kept.
class ResultLines {
 public:
  // Opens `json`, a file of JSON Lines, and replaces an existing one. With "" results are only printed.
  absl::Status Open(const std::string& json) {
    if (json.empty()) return absl::OkStatus();
    SHALE_ASSIGN_OR_RETURN(json_, JsonLinesWriter::Open(json, JsonLinesWriter::Mode::kReplace));
    return absl::OkStatus();
  }

  absl::Status Add(const std::string& text, const JsonObject& line) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    return json_ == nullptr ? absl::OkStatus() : json_->Append(line);
  }

 private:
  std::unique_ptr<JsonLinesWriter> json_;
};

}  // namespace shale
