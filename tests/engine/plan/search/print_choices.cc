// print_choices: writes the file of what the search chooses for real jobs (choices_test.cc), and prints what each
// search took. Call it by
//   bazel run -c opt //tests/engine/plan/search:print_choices -- $PWD/tests/engine/plan/search/golden/choices.txt
#include <cstdio>
#include <ctime>
#include <fstream>

#include "tests/engine/plan/search/choices.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: print_choices FILE\n");
    return 2;
  }
  std::string text =
      "Renewed by bazel run -c opt //tests/engine/plan/search:print_choices -- "
      "$PWD/tests/engine/plan/search/golden/choices.txt\n\n";
  for (const auto& [job, machine] : shale::SearchedJobs()) {
    const std::clock_t begin = std::clock();
    const absl::StatusOr<std::string> choices = shale::ChoicesOf(job, machine);
    if (!choices.ok()) {
      std::fprintf(stderr, "%s: %s\n", job.c_str(), std::string(choices.status().message()).c_str());
      return 1;
    }
    std::printf("%s: %.2f s of CPU\n%s", job.c_str(), static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC,
                choices->c_str());
    std::fflush(stdout);
    text += *choices + "\n";
  }
  if (std::ofstream(argv[1]) << text) return 0;
  std::fprintf(stderr, "cannot write %s\n", argv[1]);
  return 1;
}
