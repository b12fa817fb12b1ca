// What the search chooses for the jobs of tools/jobs on machines of tools/machines, as the golden file has it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace shale {

// The jobs, each with a machine on which it makes sense.
std::vector<std::pair<std::string, std::string>> SearchedJobs();

// Returns the first line of a job in the golden file: "qwen2_5_0_5b on h100x8".
std::string HeadOf(const std::string& job, const std::string& machine);

// Searches the job with the memory of the machine as budget. Returns a paragraph, which begins with HeadOf: seconds and
// bytes of the choice and of the job as it is written, and the settings of the choice, one to a line.
absl::StatusOr<std::string> ChoicesOf(const std::string& job, const std::string& machine);

}  // namespace shale
