// The processes of the comm bench, of which each is a rank.
#pragma once

#include <functional>
#include <vector>

#include "engine/cluster/launch/joined_processes.h"
#include "tools/bench/comm.h"

namespace shale {

// Joins the other processes of this host, if a launcher started this one. Then runs BenchComm with the kinds that
// `kinds` returns for them, and returns its exit code.
int BenchCommOfProcesses(int argc, char** argv, const std::function<std::vector<CommKind>(JoinedProcesses&)>& kinds);

}  // namespace shale
