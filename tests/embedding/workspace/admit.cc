// Says whether a machine has room for a job that somebody else wrote. Prints the message Plan as JSON.
//
//   admit JOB
#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/time/time.h"
#include "engine/shale.h"

namespace {

std::atomic<bool> cancelled = false;  // Another thread may set it.

absl::StatusOr<std::string> Answer(const std::string& job_text) {
  const shale::AdmissionMachine machine = {
      .planning = shale::PlanningMachine, .hardware_threads = 64, .most_ranks = 8, .budget_bytes = int64_t{20} << 30};
  SHALE_ASSIGN_OR_RETURN(const shale::Admission admission,
                         shale::Admit(job_text, machine, {.time_limit = absl::Seconds(5), .cancelled = &cancelled}));
  return shale::PlanJson(admission);  // PlanMessage returns the same in binary.
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "admit JOB\n"), 2;
  std::ifstream file(argv[1]);
  const absl::StatusOr<std::string> answer = Answer(std::string(std::istreambuf_iterator<char>(file), {}));
  if (answer.ok()) return std::fputs(answer->c_str(), stdout) < 0;
  std::fprintf(stderr, "admit: %s\n", answer.status().ToString().c_str());
  return 1;
}
