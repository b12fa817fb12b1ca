// A Job as text that parses back to an equal Job.
#pragma once

#include <string>

#include "engine/config/job.h"

namespace shale {

// The job as textproto with every default written out, numbers to the last bit. ParseJobText(ResolvedJobText(job)) is
// an equal job if the job is valid. What is still undecided (a vocabulary that the data will tell, a budget that the
// machine will tell) is left out.
std::string ResolvedJobText(const Job& job);

}  // namespace shale
