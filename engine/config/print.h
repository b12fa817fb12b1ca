// Prints a Job as text that parses back to an equal Job.
#pragma once

#include <string>

#include "engine/config/job.h"

namespace shale {

// The first line of ResolvedJobText.
inline constexpr char kResolvedJobHead[] = "# The job as it runs: every default is written out.\n";

// Returns the job as textproto, with every default written out and numbers exact to the last bit.
// ParseJobText(ResolvedJobText(job)) returns an equal job if the job is valid. Leaves out values that are still
// undecided: a vocabulary that depends on the data, a budget that depends on the machine.
std::string ResolvedJobText(const Job& job);

}  // namespace shale
