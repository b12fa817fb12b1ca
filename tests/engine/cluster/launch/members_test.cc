// Memberships of real processes, which are killed and stopped. The program starts itself again for each process.
//
//     members_test                    runs the tests
//     members_test form PROCESSES     prints how long so many processes take from their start until all have joined
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/cluster/launch/membership.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/engine/cluster/launch/free_port.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kPatientSeconds = 30;

void Say(const std::string& line) {
  const std::string text = absl::StrCat(line, "\n");
  SHALE_CHECK(write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// What a process of the job does: joins, says so, and meets the others until the job fails; or leaves at once.
int RunMember(char** arguments) {
  const MembershipOptions options = {.place = {.launcher = "a test",
                                               .process = std::atoi(arguments[0]),
                                               .processes = std::atoi(arguments[1]),
                                               .address = "127.0.0.1",
                                               .ports = {std::atoi(arguments[2])}},
                                     .token = "secret",
                                     .facts = {{"job", "quickstart"}},
                                     .join_seconds = kPatientSeconds,
                                     .heartbeat_seconds = std::atof(arguments[3])};
  auto member = Membership::Join(options);
  Say(member.ok() ? "joined" : std::string(member.status().message()));
  if (!member.ok()) return 1;
  if (absl::string_view(arguments[4]) == "leave") return (*member)->Leave().ok() ? 0 : 2;
  absl::Status status;
  while (status.ok()) {
    status = (*member)->Barrier(ControlChannel::kSteps);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  Say(std::string(status.message()));
  return 3;
}

class Member {
 public:
  Member(int process, int processes, int port, double heartbeat_seconds, const std::string& work) {
    int ends[2];
    SHALE_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    out_ = ends[0];
    std::vector<std::string> words = {"members_test",
                                      "member",
                                      absl::StrCat(process),
                                      absl::StrCat(processes),
                                      absl::StrCat(port),
                                      absl::StrCat(heartbeat_seconds),
                                      work};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    SHALE_CHECK(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~Member() {
    Signal(SIGKILL);
    (void)Wait();
    close(out_);
  }

  // Returns the next line that the process says, or "" if it ends or says nothing for long.
  std::string Line() {
    std::string line;
    char c = 0;
    pollfd ready = {.fd = out_, .events = POLLIN};
    while (poll(&ready, 1, static_cast<int>(kPatientSeconds * 1000)) == 1 && read(out_, &c, 1) == 1 && c != '\n') {
      line += c;
    }
    return line;
  }
  void Signal(int signal) {
    if (!waited_) kill(pid_, signal);
  }
  int Wait() {
    if (!waited_) SHALE_CHECK(waitpid(pid_, &result_, 0) == pid_);
    waited_ = true;
    return WIFEXITED(result_) ? WEXITSTATUS(result_) : -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  bool waited_ = false;
  int result_ = 0;
};

using Members = std::vector<std::unique_ptr<Member>>;

Members Start(int processes, double heartbeat_seconds, const std::string& work) {
  const int port = FreePort();
  Members members;
  for (int process = 0; process < processes; ++process) {
    members.push_back(std::make_unique<Member>(process, processes, port, heartbeat_seconds, work));
  }
  return members;
}

TEST(MembersTest, ProcessesJoinAndLeave) {
  const Members members = Start(5, 10, "leave");
  for (const auto& member : members) EXPECT_EQ(member->Line(), "joined");
  for (const auto& member : members) EXPECT_EQ(member->Wait(), 0);
}

// Starts four processes that meet again and again, sends `signal` to one of them, and returns what the others say.
std::vector<std::string> WhatOthersSay(int victim, int signal, double heartbeat_seconds, pid_t& pid) {
  const Members members = Start(4, heartbeat_seconds, "meet");
  for (const auto& member : members) EXPECT_EQ(member->Line(), "joined");
  pid = members[victim]->pid();
  members[victim]->Signal(signal);
  std::vector<std::string> said;
  for (const auto& member : members) {
    if (member == members[victim]) continue;
    said.push_back(member->Line());
    EXPECT_EQ(member->Wait(), 3);
  }
  return said;
}

TEST(MembersTest, AllNoticeAKilledProcess) {
  pid_t pid = 0;
  for (const std::string& said : WhatOthersSay(2, SIGKILL, 60, pid)) {
    EXPECT_THAT(said, HasSubstr(absl::StrCat("process 2 (pid ", pid, " on ")));
    EXPECT_THAT(said, HasSubstr("ended without leaving the job"));
  }
}

TEST(MembersTest, AllNoticeThatProcessZeroIsKilled) {
  pid_t pid = 0;
  for (const std::string& said : WhatOthersSay(0, SIGKILL, 60, pid)) {
    EXPECT_THAT(said, HasSubstr("which runs the control plane, has ended or cannot be reached any more"));
  }
}

TEST(MembersTest, AllNoticeAStoppedProcess) {
  pid_t pid = 0;
  for (const std::string& said : WhatOthersSay(1, SIGSTOP, 1.25, pid)) {
    EXPECT_THAT(said, HasSubstr(absl::StrCat("process 1 (pid ", pid, " on ")));
    EXPECT_THAT(said, HasSubstr("has not been heard from for 1 s"));
  }
}

TEST(MembersTest, AllNoticeThatProcessZeroIsStopped) {
  pid_t pid = 0;
  for (const std::string& said : WhatOthersSay(0, SIGSTOP, 1.25, pid)) {
    EXPECT_THAT(said, HasSubstr("has not been heard from for 1 s"));
  }
}

int Form(int processes) {
  const auto start = std::chrono::steady_clock::now();
  const Members members = Start(processes, 10, "leave");
  for (const auto& member : members) SHALE_CHECK(member->Line() == "joined");
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  for (const auto& member : members) SHALE_CHECK(member->Wait() == 0);
  std::printf("%d processes joined %.2f s after the first of them was started\n", processes, taken.count());
  return 0;
}

}  // namespace
}  // namespace shale::testing

int main(int argc, char** argv) {
  if (argc == 7 && absl::string_view(argv[1]) == "member") return shale::testing::RunMember(argv + 2);
  if (argc == 3 && absl::string_view(argv[1]) == "form") return shale::testing::Form(std::atoi(argv[2]));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
