// A program that a test runs, and ends when it likes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace shale {

class ChildProcess {
 public:
  // The program's path, as the test sees it, and its arguments. It starts in `folder` (empty: where the test is); what
  // it prints goes to the file `log` (empty: where the test's goes).
  explicit ChildProcess(const std::vector<std::string>& command, const std::string& folder = "",
                        const std::string& log = "");
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();  // Kills it.

  bool Running();
  void Signal(int signal);  // One that has ended is left alone.
  void Kill();              // SIGKILL.
  // Waits for its end: the exit code, or the negative number of the signal that ended it.
  int Wait();

 private:
  void Reap(int options);

  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

}  // namespace shale
