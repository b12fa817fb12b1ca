// An example of a service that embeds Shale: runs training jobs that clients submit over gRPC, several side by side.

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/examples/service/job_queue.h"
#include "tools/examples/service/rpc.h"
#include "tools/examples/service/web_page.h"

ABSL_FLAG(std::string, folder, "", "Where the service keeps its jobs: made if it is missing. Required.");
ABSL_FLAG(std::string, data, "", "The folder with the data of all jobs. Required.");
ABSL_FLAG(int64_t, threads, std::thread::hardware_concurrency(), "Threads that all running jobs have together.");
ABSL_FLAG(int64_t, memory_mib, 4096, "Memory that all running jobs have together: arenas and pinned memory.");
ABSL_FLAG(int64_t, most_jobs, 1000, "Jobs that the service keeps, with those that have ended.");
ABSL_FLAG(int64_t, most_watchers, 64, "Calls that watch jobs at a time.");
ABSL_FLAG(std::string, host, "127.0.0.1", "The address to listen at. There is no authentication.");
ABSL_FLAG(int, port, 50051, "The port of the calls; 0: any that is free.");
ABSL_FLAG(int, page_port, 8080, "The port of the web page; 0: any that is free.");

namespace service {
namespace {

constexpr char kUsage[] =
    "runs training jobs of Shale side by side within a budget of threads and memory. Clients submit them over gRPC\n"
    "(tools/examples/service/service.proto; tools/examples/service:client is one), and a web page shows them.\n\n"
    "  service --folder=jobs --data=texts --threads=8 --memory_mib=16384\n\n"
    "Ctrl-C saves a checkpoint of every job that runs, and ends. A service that is started again with the same\n"
    "--folder goes on with all jobs, however the last one ended. Exit codes: 0 ended by a signal; 1 it could not\n"
    "start, and stderr says why.";

constexpr std::chrono::seconds kDeadlineOfCalls(2);
constexpr int kOtherThreads = 16;  // Of calls that do not watch. More calls at a time are refused.

int Fail(absl::string_view message) {
  std::fprintf(stderr, "service: %s\n", std::string(message).c_str());
  return 1;
}

int Serve(const sigset_t& signals) {
  std::error_code error;
  const std::string data = std::filesystem::canonical(absl::GetFlag(FLAGS_data), error);
  if (error) return Fail(absl::StrCat("--data=", absl::GetFlag(FLAGS_data), ": ", error.message()));
  const Budget budget = {.threads = absl::GetFlag(FLAGS_threads), .bytes = absl::GetFlag(FLAGS_memory_mib) << 20};
  const Limits limits = {.jobs = absl::GetFlag(FLAGS_most_jobs), .watchers = absl::GetFlag(FLAGS_most_watchers)};
  absl::StatusOr<std::unique_ptr<JobQueue>> queue = JobQueue::Open(absl::GetFlag(FLAGS_folder), data, budget, limits);
  if (!queue.ok()) return Fail(queue.status().message());

  const std::string host = absl::GetFlag(FLAGS_host);
  Rpc rpc(queue->get());
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Two services must not share a port.
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(static_cast<int>(limits.watchers) + kOtherThreads);
  builder.SetResourceQuota(quota);
  builder.AddListeningPort(absl::StrCat(host, ":", absl::GetFlag(FLAGS_port)), grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&rpc);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return Fail(absl::StrCat("cannot listen at ", host, "; give a --port that is free, or 0"));
  }
  const absl::StatusOr<std::unique_ptr<WebPage>> page =
      WebPage::Start(queue->get(), host, absl::GetFlag(FLAGS_page_port));
  if (!page.ok()) return Fail(page.status().message());
  std::printf("calls: %s:%d\npage: http://%s:%d/\n", host.c_str(), port, host.c_str(), (*page)->port());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  (*queue)->BeginToEnd();
  server->Shutdown(std::chrono::system_clock::now() + kDeadlineOfCalls);
  return 0;  // The queue waits until the jobs are saved.
}

}  // namespace
}  // namespace service

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(service::kUsage);
  // Otherwise --help shows only flags of a file that has the program's name.
  absl::SetFlagsUsageConfig(
      {.contains_help_flags = [](absl::string_view file) { return absl::EndsWith(file, "service/main.cc"); }});
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) return service::Fail(absl::StrCat("unexpected word ", words[1]));
  if (absl::GetFlag(FLAGS_folder).empty() || absl::GetFlag(FLAGS_data).empty()) {
    return service::Fail("give --folder and --data; see --help");
  }
  if (absl::GetFlag(FLAGS_threads) < 1 || absl::GetFlag(FLAGS_memory_mib) < 1 ||
      absl::GetFlag(FLAGS_memory_mib) > int64_t{1} << 30) {
    return service::Fail("give --threads of at least 1, and --memory_mib of 1 to 2^30");
  }
  for (const int64_t most : {absl::GetFlag(FLAGS_most_jobs), absl::GetFlag(FLAGS_most_watchers)}) {
    if (most < 1 || most > 10'000) return service::Fail("give --most_jobs and --most_watchers of 1 to 10000");
  }
  // Every thread inherits the mask, so signals come to sigwait only.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return service::Serve(signals);
}
