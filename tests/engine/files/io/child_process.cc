#include "tests/engine/files/io/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "gtest/gtest.h"

namespace shale {

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::string& folder, const std::string& log) {
  std::vector<std::string> arguments = command;
  // The program may start in another folder.
  arguments[0] = std::filesystem::absolute(arguments[0]);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!log.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  }
  if (!folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  const int error_number = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error_number != 0) {
    ADD_FAILURE() << "cannot start " << argv[0] << ": " << strerror(error_number);
    ended_ = true;
    status_ = -1;
  }
}

ChildProcess::~ChildProcess() {
  Kill();
  Wait();
}

void ChildProcess::Reap(int options) {
  while (!ended_) {
    const pid_t found = waitpid(pid_, &status_, options);
    if (found < 0 && errno == EINTR) continue;
    ended_ = found != 0;
    return;
  }
}

bool ChildProcess::Running() {
  Reap(WNOHANG);
  return !ended_;
}

void ChildProcess::Signal(int signal) {
  if (Running()) kill(pid_, signal);
}

void ChildProcess::Kill() { Signal(SIGKILL); }

int ChildProcess::Wait() {
  Reap(0);
  return WIFSIGNALED(status_) ? -WTERMSIG(status_) : WEXITSTATUS(status_);
}

}  // namespace shale
