// Tests groups over Gloo between true processes: the laws of all communicators, and how a group ends when a process is
// killed or stopped.
//
// The test starts its own program once for each process of a group, with the environment variables below. Each such
// process runs the cases that a filter names, in the same order, so that their groups meet.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/gloo/gloo.h"
#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/folder_store.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

constexpr char kProcess[] = "SHALE_TEST_PROCESS", kProcesses[] = "SHALE_TEST_PROCESSES",
               kFolder[] = "SHALE_TEST_FOLDER";

int Number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? -1 : std::atoi(text);
}

// The process that holds a rank. With fewer ranks than processes, some processes hold none.
int ProcessOf(int rank, int ranks) { return rank * Number(kProcesses) / ranks; }

// Creates the next group of this process. The communicators of ranks elsewhere are null.
Group CreateHere(int size, const GlooOptions& options) {
  static int created = 0;
  Group group(size);
  GlooMembers members = {.name = absl::StrCat("group ", created++), .process = Number(kProcess)};
  std::vector<int> local;
  for (int rank = 0; rank < size; ++rank) {
    members.process_of_rank.push_back(ProcessOf(rank, size));
    if (members.process_of_rank.back() == members.process) local.push_back(rank);
  }
  if (local.empty()) return group;
  FolderStore store(std::getenv(kFolder));
  absl::StatusOr<Group> made = CreateGlooGroup(store, members, options);
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    std::abort();
  }
  for (size_t i = 0; i < local.size(); ++i) group[local[i]] = std::move((*made)[i]);
  return group;
}

INSTANTIATE_TEST_SUITE_P(
    InProcesses, CommunicatorConformance,
    ::testing::Values(CommunicatorCase{"ThatReadMemory", [] { return CreateCpuDevice(); },
                                       [](int size, Device&) { return CreateHere(size, {.timeout_seconds = 60}); }},
                      CommunicatorCase{"OverTcp", [] { return CreateCpuDevice(); },
                                       [](int size, Device&) {
                                         return CreateHere(size, {.timeout_seconds = 60, .read_memory = false});
                                       }}),
    CaseName);

// The body of the processes that are killed and stopped: all ranks repeat a large all-reduce. Prints the error.
void RepeatAllReduces(bool read_memory) {
  if (Number(kProcess) < 0) GTEST_SKIP() << "runs in the processes of other cases";
  const int ranks = Number(kProcesses);
  Group group = CreateHere(ranks, {.timeout_seconds = 1, .read_memory = read_memory});
  CpuDevice device;
  ForEachRank(ranks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device.CreateStream("comm");
    const DeviceVector<float> data(device, 1000000);
    absl::Status status;
    for (int i = 0; status.ok(); ++i) {
      if (i == 3) std::ofstream(absl::StrCat(std::getenv(kFolder), "/running", rank)) << "yes";
      status = group[rank]->AllReduceSum(data.View(), *stream);
      if (status.ok()) status = stream->Synchronize();
    }
    std::printf("ERROR %s\n", status.ToString().c_str());
  });
}

TEST(Child, ReadsMemory) { RepeatAllReduces(true); }
TEST(Child, UsesTcp) { RepeatAllReduces(false); }
constexpr const char* kChildren[] = {"Child.ReadsMemory", "Child.UsesTcp"};

// The processes of one run. Those that still run are killed at the end.
class Processes {
 public:
  Processes(int count, const std::string& filter) {
    static int runs = 0;
    folder_ = absl::StrCat(::testing::TempDir(), "/gloo_process_test_", getpid(), "_", ++runs);
    std::filesystem::create_directories(folder_);
    for (int process = 0; process < count; ++process) Start(process, count, filter);
  }
  ~Processes() {
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL);
      if (pid > 0) waitpid(pid, nullptr, 0);
    }
  }

  void Signal(int process, int signal) { kill(pids_[process], signal); }
  // Waits until the process ends. Returns its exit code, or -1 if it does not end by itself within a minute.
  int Wait(int process) {
    for (int i = 0; i < 6000; ++i) {
      int status = 0;
      if (waitpid(pids_[process], &status, WNOHANG) == pids_[process]) {
        pids_[process] = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }
  void AwaitRunning(int ranks) {
    FolderStore store(folder_);
    for (int rank = 0; rank < ranks; ++rank) ASSERT_TRUE(store.Get(absl::StrCat("running", rank), 60).ok());
  }
  std::string Output(int process) const {
    std::ostringstream text;
    text << std::ifstream(absl::StrCat(folder_, "/output", process)).rdbuf();
    return text.str();
  }

 private:
  void Start(int process, int count, const std::string& filter) {
    const std::string path = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string arguments[] = {path, absl::StrCat("--gtest_filter=", filter)};
    char* argv[] = {const_cast<char*>(arguments[0].c_str()), const_cast<char*>(arguments[1].c_str()), nullptr};
    std::vector<std::string> variables = {absl::StrCat(kProcess, "=", process), absl::StrCat(kProcesses, "=", count),
                                          absl::StrCat(kFolder, "=", folder_)};
    for (const char* name : {"TSAN_OPTIONS", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TEST_TMPDIR"}) {
      if (const char* value = std::getenv(name)) variables.push_back(absl::StrCat(name, "=", value));
    }
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    const std::string output = absl::StrCat(folder_, "/output", process);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid = 0;
    ASSERT_EQ(posix_spawn(&pid, path.c_str(), &actions, nullptr, argv, environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    pids_.push_back(pid);
  }

  std::string folder_;
  std::vector<pid_t> pids_;
};

TEST(GlooProcessTest, TheLawsOfAllCommunicatorsHoldBetweenProcesses) {
  for (const int count : {2, 3}) {
    Processes processes(count, "*CommunicatorConformance.*");
    for (int process = 0; process < count; ++process) {
      EXPECT_EQ(processes.Wait(process), 0) << "process " << process << ":\n" << processes.Output(process);
      EXPECT_THAT(processes.Output(process), HasSubstr("[  PASSED  ]"));
    }
  }
}

TEST(GlooProcessTest, AKilledProcessIsNamedByAllOthersAtOnce) {
  for (int i = 0; i < 6; ++i) {
    const int victim = i / 2;
    Processes processes(3, kChildren[i % 2]);
    processes.AwaitRunning(3);
    processes.Signal(victim, SIGKILL);
    for (int process = 0; process < 3; ++process) {
      if (process == victim) continue;
      EXPECT_EQ(processes.Wait(process), 0) << processes.Output(process);
      EXPECT_THAT(processes.Output(process), HasSubstr(absl::StrCat("ERROR UNAVAILABLE: lost rank ", victim, " ")));
      EXPECT_THAT(processes.Output(process), HasSubstr("AllReduceSum of 1000000 f32"));
    }
  }
}

TEST(GlooProcessTest, AStoppedProcessIsNamedAtTheDeadline) {
  for (const char* child : kChildren) {
    Processes processes(3, child);
    processes.AwaitRunning(3);
    processes.Signal(1, SIGSTOP);
    // Of the two others, at least one waits for the stopped process. The other may wait for that one. If the deadline
    // of the other passes first, its error does not name rank 1. The one that waits for rank 1 then adds this to it.
    std::string said;
    for (const int process : {0, 2}) {
      EXPECT_EQ(processes.Wait(process), 0) << processes.Output(process);
      EXPECT_THAT(processes.Output(process), HasSubstr("ERROR DEADLINE_EXCEEDED"));
      said += processes.Output(process);
    }
    EXPECT_THAT(said, HasSubstr("rank 1"));
  }
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (shale::Number(shale::kProcess) < 0) {
    // The cases of the suite run in the processes that this one starts, whatever filter the caller has set.
    std::string& filter = ::testing::GTEST_FLAG(filter);
    absl::StrAppend(&filter, filter.find('-') == std::string::npos ? "-" : ":", "InProcesses/*");
  } else {
    shale::SetRanksHere(
        [](int rank, int ranks) { return shale::ProcessOf(rank, ranks) == shale::Number(shale::kProcess); });
  }
  return RUN_ALL_TESTS();
}
