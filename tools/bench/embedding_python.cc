// The contestant of the embedding bench that steps in a process of Python. The two processes speak in lines: the bench
// asks for a step, or for small calls, and gets numbers, or a line that begins with "error".
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"
#include "tools/bench/embedding_contestants.h"

namespace shale {
namespace {

class PythonContestant : public Contestant {
 public:
  ~PythonContestant() override {
    if (to_ != nullptr) fclose(to_);  // The script ends where its input does.
    if (from_ != nullptr) fclose(from_);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }

  absl::Status Start(const BenchJob& job, const PythonOptions& options) {
    int to_child[2], from_child[2];
    if (pipe(to_child) != 0 || pipe(from_child) != 0) return FileError(errno, "make a pipe to", options.interpreter);
    std::vector<std::string> words = {options.interpreter, options.script, job.path};
    words.insert(words.end(), job.overrides.begin(), job.overrides.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    signal(SIGPIPE, SIG_IGN);  // A script that ends early is an error, not a signal.
    child_ = fork();
    if (child_ < 0) return FileError(errno, "start", options.interpreter);
    if (child_ == 0) {
      dup2(to_child[0], 0);
      dup2(from_child[1], 1);
      for (const int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(fd);
      setenv("PYTHONPATH", options.package.c_str(), 1);
      setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
      setenv("SHALE_LIBRARY", options.library.c_str(), 1);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    close(to_child[0]);
    close(from_child[1]);
    to_ = fdopen(to_child[1], "w");
    from_ = fdopen(from_child[0], "r");
    return Answer(1).status();
  }

  absl::StatusOr<TimedStep> Step() override {
    SHALE_RETURN_IF_ERROR(Ask("step"));
    SHALE_ASSIGN_OR_RETURN(const std::vector<double> numbers, Answer(3));
    return TimedStep{numbers[0], numbers[1], numbers[2]};
  }
  absl::StatusOr<double> SmallCall(int64_t count) override {
    SHALE_RETURN_IF_ERROR(Ask(absl::StrCat("calls ", count)));
    SHALE_ASSIGN_OR_RETURN(const std::vector<double> numbers, Answer(1));
    return numbers[0];
  }

 private:
  absl::Status Ask(const std::string& line) {
    if (std::fprintf(to_, "%s\n", line.c_str()) < 0 || std::fflush(to_) != 0) {
      return FileError(errno, "write to", "the script");
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<double>> Answer(size_t count) {
    char line[4096];
    if (std::fgets(line, sizeof(line), from_) == nullptr) {
      return absl::UnavailableError("the script in Python ended; what it said is above");
    }
    if (absl::StartsWith(line, "error")) return absl::InternalError(line);
    std::vector<double> numbers;
    for (const absl::string_view word : absl::StrSplit(line, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
      if (!absl::SimpleAtod(word, &numbers.emplace_back())) break;
    }
    if (numbers.size() != count) return absl::InternalError(absl::StrCat("the script in Python said: ", line));
    return numbers;
  }

  pid_t child_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Contestant>> StepInPython(const BenchJob& job, const PythonOptions& options) {
  auto contestant = std::make_unique<PythonContestant>();
  SHALE_RETURN_IF_ERROR(contestant->Start(job, options));
  return contestant;
}

}  // namespace shale
