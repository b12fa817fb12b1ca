// Runs a program, which a test can end at any time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace shale {

class ChildProcess {
 public:
  // Starts a program. `command` is its path, relative to the test's working folder, and its arguments. The program
  // starts in `folder`, or in the test's if that is empty. Its output goes to the file `log`, or to the test's output
  // if that is empty. If the program cannot be started, the test fails.
  explicit ChildProcess(const std::vector<std::string>& command, const std::string& folder = "",
                        const std::string& log = "");
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();  // Kills the program and waits for its end.

  bool Running();
  void Signal(int signal);  // Does nothing if the program has ended.
  void Kill();              // Signal(SIGKILL).
  // Waits until the program ends. Returns its exit code, or the negative number of the signal that ended it.
  int Wait();

 private:
  void Reap(int options);

  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

}  // namespace shale
