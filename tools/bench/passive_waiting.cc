#include "tools/bench/passive_waiting.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace shale {

void WaitPassively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  char program[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (size <= 0) return;
  program[size] = '\0';
  setenv("OMP_WAIT_POLICY", "passive", 1);
  setenv("GOMP_SPINCOUNT", "2000", 1);
  // execv returns only if it fails. Then threads spin, which is slower but correct.
  execv(program, argv);
}

}  // namespace shale
