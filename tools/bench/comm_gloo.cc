#include "tools/bench/comm_gloo.h"

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/gloo/gloo.h"
#include "tools/bench/support.h"

namespace shale {
absl::StatusOr<CommRanks> GlooRanks(JoinedProcesses& joined, int ranks, bool read_memory) {
  CommRanks made;
  made.about =
      absl::StrCat(ProcessorName(), ", ", ProcessorCount(), " processors, ", joined.alone() ? "threads" : "processes",
                   " on this host, ", read_memory ? "which read one another's memory" : "over TCP", " (Gloo)");
  const GlooOptions options = {.read_memory = read_memory, .report = [](const std::string& line) {
                                 std::fprintf(stderr, "comm: %s\n", line.c_str());
                               }};
  if (!joined.alone()) {
    std::vector<int> process_of_rank(ranks);
    std::iota(process_of_rank.begin(), process_of_rank.end(), 0);
    made.devices = {CreateCpuDevice()};
    SHALE_ASSIGN_OR_RETURN(
        made.communicators,
        CreateGlooGroup(joined.store(),
                        {.name = "all", .process = joined.place().process, .process_of_rank = process_of_rank},
                        options));
    return made;
  }
  made.devices.assign(ranks, CreateCpuDevice());
  SHALE_ASSIGN_OR_RETURN(made.communicators, CreateGlooGroupOfThreads("all", ranks, options));
  return made;
}

}  // namespace shale
