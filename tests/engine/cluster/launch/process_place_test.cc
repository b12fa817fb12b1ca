#include "engine/cluster/launch/process_place.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::SizeIs;

ProcessPlace Found(const Variables& variables) {
  const absl::StatusOr<ProcessPlace> place = FindProcessPlace(variables);
  EXPECT_TRUE(place.ok()) << place.status();
  return place.value_or(ProcessPlace{});
}

std::string Refusal(const Variables& variables) {
  const absl::StatusOr<ProcessPlace> place = FindProcessPlace(variables);
  EXPECT_EQ(place.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(place.status().message());
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

// What torchrun 2.x sets in process 5 of two hosts with four processes each.
const Variables kTorchrun = {{"RANK", "5"},
                             {"LOCAL_RANK", "1"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_RUN_ID", "abc"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_STEP_NODELIST", "gpu[07-09]"},
                          {"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "0"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_RANK", "1"},
                            {"PMIX_NAMESPACE", "prterun-host-17@1"}};
const Variables kKubeflow = {{"PET_NODE_RANK", "1"},       {"PET_NNODES", "2"},
                             {"PET_NPROC_PER_NODE", "8"},  {"PET_MASTER_ADDR", "a-0.svc"},
                             {"PET_MASTER_PORT", "29500"}, {"JOB_COMPLETION_INDEX", "1"}};

TEST(ProcessPlaceTest, WithoutALauncherRanksAreThreads) {
  for (const Variables& variables : {Variables{}, Variables{{"PATH", "/bin"}}, Variables{{"RANK", ""}}}) {
    const ProcessPlace place = Found(variables);
    EXPECT_FALSE(place.launched());
    EXPECT_EQ(place.processes, 1);
    EXPECT_EQ(place.Describe(), "one process, whose threads are the ranks");
  }
}

TEST(ProcessPlaceTest, TorchrunWhoseAgentHasThePort) {
  const ProcessPlace place = Found(kTorchrun);
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.process, 5);
  EXPECT_EQ(place.processes, 8);
  EXPECT_EQ(place.local_process, 1);
  EXPECT_EQ(place.local_processes, 4);
  EXPECT_EQ(place.address, "node0");
  EXPECT_EQ(place.launch, "abc.2");
  EXPECT_THAT(place.ports, SizeIs(16));
  EXPECT_THAT(place.ports, Each(Ge(61440)));
  EXPECT_THAT(place.Describe(),
              HasSubstr(absl::StrCat("process 5 of 8, 1 of 4 on this host, by torchrun; process 0 is at node0:",
                                     place.ports[0], " or one of the next 15 ports")));
  // Every process derives the same ports.
  EXPECT_EQ(Found(With(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})).ports, place.ports);
}

TEST(ProcessPlaceTest, TorchrunWithoutAStoreOfItsAgent) {
  EXPECT_THAT(Found(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).ports, ElementsAre(29400));
}

TEST(ProcessPlaceTest, VariablesSetByHand) {
  const ProcessPlace place =
      Found({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}});
  EXPECT_EQ(place.Describe(), "process 1 of 2, by RANK and WORLD_SIZE; process 0 is at 10.0.0.1:4000");
  EXPECT_FALSE(place.local_process.has_value());
}

TEST(ProcessPlaceTest, OneProcessNeedsNoAddress) {
  const ProcessPlace place = Found({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_TRUE(place.launched());
  EXPECT_EQ(place.Describe(), "process 0 of 1, by RANK and WORLD_SIZE");
}

TEST(ProcessPlaceTest, OpenMpiOnOneHost) {
  const ProcessPlace place = Found(kOpenMpi);
  EXPECT_EQ(place.launcher, "Open MPI");
  EXPECT_EQ(place.process, 1);
  EXPECT_EQ(place.local_processes, 4);
  EXPECT_EQ(place.address, "127.0.0.1");
  EXPECT_THAT(place.ports, SizeIs(16));
}

TEST(ProcessPlaceTest, OpenMpiOnSeveralHostsNeedsAnAddress) {
  const Variables several = With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(Refusal(several), HasSubstr("process 1 of 4, but not where process 0 is; set MASTER_ADDR"));
  EXPECT_EQ(Found(With(several, {{"MASTER_ADDR", "n0"}})).address, "n0");
}

TEST(ProcessPlaceTest, Slurm) {
  const ProcessPlace place = Found(kSlurm);
  EXPECT_EQ(place.launcher, "Slurm");
  EXPECT_EQ(place.process, 3);
  EXPECT_EQ(place.processes, 5);
  EXPECT_EQ(place.local_process, 1);
  EXPECT_EQ(place.local_processes, 2);
  EXPECT_EQ(place.address, "gpu07");
  EXPECT_EQ(place.launch, "4711.0");
  EXPECT_THAT(Found(With(kSlurm, {{"MASTER_PORT", "5000"}})).ports, ElementsAre(5000));
  EXPECT_EQ(Found(With(kSlurm, {{"MASTER_ADDR", "login"}})).address, "login");
}

TEST(ProcessPlaceTest, ABatchScriptOfSlurmIsNoStep) {
  const ProcessPlace place = Found({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}});
  EXPECT_FALSE(place.launched());
  EXPECT_EQ(place.Describe(), "one process, whose threads are the ranks (a Slurm job, but no step of srun)");
}

TEST(ProcessPlaceTest, KubeflowStartsOneProcessInEachPod) {
  const ProcessPlace place = Found(kKubeflow);
  EXPECT_EQ(place.Describe(),
            "process 1 of 2, by Kubeflow (one process in each pod; torchrun or Shale's launcher would start "
            "PET_NPROC_PER_NODE=8); process 0 is at a-0.svc:29500");
}

TEST(ProcessPlaceTest, IndexedJob) {
  const ProcessPlace alone = Found({{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_FALSE(alone.launched());
  EXPECT_THAT(alone.Describe(), HasSubstr("JOB_COMPLETION_INDEX=2 without WORLD_SIZE: this pod works alone"));
  const ProcessPlace place = Found(
      {{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-0.svc"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(place.Describe(), "process 2 of 3, by the indexed Job; process 0 is at job-0.svc:29500");
}

TEST(ProcessPlaceTest, ShalesOwnLauncher) {
  const ProcessPlace place = Found(With(kSlurm, {{"SHALE_PROCESS", "0"},
                                                 {"SHALE_PROCESSES", "4"},
                                                 {"SHALE_LOCAL_PROCESS", "0"},
                                                 {"SHALE_LOCAL_PROCESSES", "4"},
                                                 {"SHALE_MASTER_PORT", "7000"},
                                                 {"SHALE_LAUNCH", "x"}}));
  EXPECT_EQ(place.Describe(),
            "process 0 of 4, 0 of 4 on this host, by Shale's launcher; process 0 is at 127.0.0.1:7000");
}

TEST(ProcessPlaceTest, TheInnerLauncherHolds) {
  EXPECT_EQ(Found(With(kSlurm, kTorchrun)).launcher, "torchrun");
  EXPECT_EQ(Found(With(kKubeflow, kTorchrun)).launcher, "torchrun");
  EXPECT_EQ(Found(With(kSlurm, kOpenMpi)).launcher, "Open MPI");
}

TEST(ProcessPlaceTest, LaunchersThatAgree) {
  EXPECT_EQ(
      Found(With(kSlurm, {{"RANK", "3"}, {"WORLD_SIZE", "5"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}})).process, 3);
  // A step of one task, such as an interactive shell, says nothing about processes that are started in it.
  const Variables shell = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  EXPECT_EQ(
      Found(With(shell, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}})).process, 1);
}

TEST(ProcessPlaceTest, ContradictionsAreRefusedWithBothValues) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "RANK=4 contradicts WORLD_SIZE=4"},
      {With(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 contradicts LOCAL_WORLD_SIZE=4"},
      {With(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE=9 contradicts WORLD_SIZE=8"},
      {With(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "5"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}),
       "RANK=0 and WORLD_SIZE=5 contradict SLURM_PROCID=3 and SLURM_STEP_NUM_TASKS=5 of Slurm"},
      {With(kOpenMpi, {{"PMIX_RANK", "2"}}), "PMIX_RANK=2 contradicts OMPI_COMM_WORLD_RANK=1"},
      {With(kSlurm, {{"PMIX_RANK", "2"}}), "PMIX_RANK=2 contradicts SLURM_PROCID=3"},
      {With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}}),
       "SLURM_STEP_TASKS_PER_NODE=2(x3) contradicts SLURM_STEP_NUM_TASKS=5: they are 6 tasks"},
      {With(kSlurm, {{"SLURM_NODEID", "3"}}), "SLURM_NODEID=3 contradicts SLURM_STEP_TASKS_PER_NODE=2(x2),1"},
      {With(kSlurm, {{"SLURM_LOCALID", "2"}}), "SLURM_LOCALID=2 contradicts SLURM_STEP_TASKS_PER_NODE=2(x2),1"},
      {With(kKubeflow, {{"MASTER_ADDR", "b"}}), "PET_MASTER_ADDR=a-0.svc contradicts MASTER_ADDR=b"},
      {With(kKubeflow, {{"JOB_COMPLETION_INDEX", "0"}, {"WORLD_SIZE", "2"}}),
       "PET_NODE_RANK=1 and PET_NNODES=2 contradict JOB_COMPLETION_INDEX=0 and WORLD_SIZE=2 of the indexed Job"},
  };
  for (const auto& [variables, message] : cases) EXPECT_THAT(Refusal(variables), HasSubstr(message));
}

TEST(ProcessPlaceTest, MissingAndMalformedVariablesAreNamed) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"RANK", "0"}}, "found RANK=0 and no WORLD_SIZE; set both"},
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "wanted a number from 0 to 16777215 in RANK, found \"one\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "wanted a number from 1 to 16777216 in WORLD_SIZE, found \"0\""},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "found \"-1\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "set MASTER_ADDR to its host"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, "names no port for process 0; set MASTER_PORT"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}, "found \"70000\""},
      {{{"PMIX_RANK", "0"}}, "PMIx started this process (PMIX_RANK=0), but no variable says how many"},
      {With(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[x]"}}), "such as gpu[07-09,12], found \"gpu[x]\""},
      {With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}), "such as 2(x3),1, found \"2(x\""},
  };
  for (const auto& [variables, message] : cases) EXPECT_THAT(Refusal(variables), HasSubstr(message));
}

TEST(ProcessPlaceTest, NoVariableCrashesTheReader) {
  const std::vector<std::string> values = {"",  "0",   "1", "2", "-1", "99999999999999999999", "x", "2(x1000000000)",
                                           "[", "a[1", ","};
  for (const Launcher& launcher : Launchers()) {
    for (const std::string& value : values) {
      for (const absl::string_view name :
           {launcher.process, launcher.processes, launcher.local_process, launcher.address, launcher.port}) {
        for (const Variables& base : {kTorchrun, kSlurm, kOpenMpi, kKubeflow}) {
          const absl::StatusOr<ProcessPlace> place = FindProcessPlace(With(base, {{std::string(name), value}}));
          if (!place.ok()) continue;
          EXPECT_LT(place->process, place->processes);
        }
      }
    }
  }
}

TEST(SlurmListsTest, FirstHost) {
  const std::map<std::string, std::string> hosts = {
      {"a", "a"}, {"a,b", "a"}, {"gpu[07-09,12],x", "gpu07"}, {"r[3]n[1-2]", "r3n1"}, {"n[10,20]-ib", "n10-ib"}};
  for (const auto& [list, host] : hosts) EXPECT_EQ(FirstHost(list).value(), host);
  for (const char* list : {"", ",a", "a[", "a[]", "a]b", "a[b]", "a b"}) EXPECT_FALSE(FirstHost(list).ok()) << list;
}

TEST(SlurmListsTest, TasksOnNodes) {
  EXPECT_THAT(TasksOnNodes("2(x3),1").value(), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(TasksOnNodes("4").value(), ElementsAre(4));
  for (const char* list : {"", "x", "2(x", "2(x0)", "2(x)", "1,", "-1", "1(x999999999)"}) {
    EXPECT_FALSE(TasksOnNodes(list).ok()) << list;
  }
}

}  // namespace
}  // namespace shale
