#include "engine/cluster/launch/joined_processes.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/cluster/launch/credentials.h"
#include "engine/cluster/launch/host_address.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr ControlChannel kChannel = ControlChannel::kSteps;
constexpr int64_t kMostProbeBytes = 4096;
// How long a file that another host has made may take to appear. Network file systems keep what they know of a folder
// for some seconds.
constexpr std::chrono::seconds kProbeDeadline(4);
constexpr absl::string_view kHeartbeat = "SHALE_HEARTBEAT_SECONDS", kJoin = "SHALE_JOIN_SECONDS";
constexpr double kMostSeconds = 24 * 60 * 60;
// How long a process that cannot take part tries to say so.
constexpr double kDeclineSeconds = 10;

// Returns the seconds that a variable gives, or `otherwise` if it is not set.
absl::StatusOr<double> SecondsFrom(const Variables& variables, absl::string_view name, double otherwise) {
  const auto given = variables.find(name);
  if (given == variables.end()) return otherwise;
  double seconds = 0;
  if (!absl::SimpleAtod(given->second, &seconds) || !(seconds >= 1 && seconds <= kMostSeconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted seconds from 1 to ", kMostSeconds, " in ", name, ", found ", Quoted(given->second)));
  }
  return seconds;
}

absl::StatusOr<std::string> AwaitFile(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kProbeDeadline;
  while (true) {
    absl::StatusOr<std::string> text = ReadFile(path, kMostProbeBytes);
    if (text.ok() || std::chrono::steady_clock::now() > deadline) return text;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

Variables EnvironmentVariables() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != text.npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::vector<int> RanksOfProcess(int64_t ranks, int process, int processes) {
  std::vector<int> mine;
  for (int64_t rank = ranks * process / processes; rank < ranks * (process + 1) / processes; ++rank) {
    mine.push_back(static_cast<int>(rank));
  }
  return mine;
}

absl::StatusOr<std::unique_ptr<JoinedProcesses>> JoinedProcesses::Join(const Variables& variables, int64_t ranks,
                                                                       Facts facts) {
  auto joined = absl::WrapUnique(new JoinedProcesses());
  SHALE_ASSIGN_OR_RETURN(joined->place_, FindProcessPlace(variables));
  const ProcessPlace& place = joined->place_;
  joined->ranks_ = RanksOfProcess(ranks, place.process, place.processes);
  joined->ranks_on_host_ = joined->ranks_here_ = ranks;
  if (place.processes == 1) return joined;
  if (place.processes > ranks) {
    return absl::InvalidArgumentError(absl::StrCat(place.launcher, " started ", place.processes,
                                                   " processes, and the "
                                                   "job has ",
                                                   ranks,
                                                   " ranks: a process holds at least one; set "
                                                   "sharding.ranks=",
                                                   place.processes, ", or start fewer processes"));
  }
  SHALE_ASSIGN_OR_RETURN(std::optional<TlsIdentity> tls, ReadTls(variables, place));
  SHALE_ASSIGN_OR_RETURN(std::string token, ReadToken(variables));
  const MembershipOptions defaults;
  SHALE_ASSIGN_OR_RETURN(const double heartbeat, SecondsFrom(variables, kHeartbeat, defaults.heartbeat_seconds));
  SHALE_ASSIGN_OR_RETURN(const double join, SecondsFrom(variables, kJoin, defaults.join_seconds));
  facts.emplace_back(kHeartbeat, absl::StrCat(heartbeat));
  SHALE_ASSIGN_OR_RETURN(joined->membership_, Membership::Join({.place = place,
                                                                .tls = std::move(tls),
                                                                .token = std::move(token),
                                                                .facts = std::move(facts),
                                                                .join_seconds = join,
                                                                .heartbeat_seconds = heartbeat}));
  const int here = joined->membership_->host_of(place.process);
  std::vector<int64_t> ranks_of_host(place.processes);
  for (int process = 0; process < place.processes; ++process) {
    if (process == place.process) joined->ranks_before_here_ = ranks_of_host[here];
    ranks_of_host[joined->membership_->host_of(process)] += std::ssize(RanksOfProcess(ranks, process, place.processes));
  }
  joined->ranks_on_host_ = *std::max_element(ranks_of_host.begin(), ranks_of_host.end());
  joined->ranks_here_ = ranks_of_host[here];
  return joined;
}

void JoinedProcesses::Decline(const Variables& variables, const absl::Status& error) {
  const absl::StatusOr<ProcessPlace> place = FindProcessPlace(variables);
  if (!place.ok() || place->processes == 1) return;
  absl::StatusOr<std::optional<TlsIdentity>> tls = ReadTls(variables, *place);
  absl::StatusOr<std::string> token = ReadToken(variables);
  if (!tls.ok() || !token.ok()) return;
  Membership::Decline(
      {.place = *place, .tls = *std::move(tls), .token = *std::move(token), .join_seconds = kDeclineSeconds}, error);
}

absl::StatusOr<std::string> JoinedProcesses::InProcessZero(absl::FunctionRef<absl::StatusOr<std::string>()> work) {
  absl::StatusOr<std::string> result = leads() ? work() : std::string();
  if (alone()) return result;
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(control(), kChannel, result.status()));
  return control().Broadcast(kChannel, *std::move(result));
}

absl::Status JoinedProcesses::CheckShared(const std::string& path) {
  if (alone()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::string written, InProcessZero([&]() -> absl::StatusOr<std::string> {
                           const auto now = std::chrono::system_clock::now().time_since_epoch().count();
                           const std::string text = absl::StrCat(ThisHost(), " ", getpid(), " ", now);
                           SHALE_RETURN_IF_ERROR(WriteFileDurably(path, text));
                           return text;
                         }));
  absl::StatusOr<std::string> seen = AwaitFile(path);
  if (seen.ok() && *seen != written) seen = absl::DataLossError(absl::StrCat(path, " has another content"));
  absl::Status status;
  if (!seen.ok()) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "the process on ", ThisHost(), " does not see the file that process 0 wrote (", seen.status().message(),
        "); all processes must reach the run folder: choose one on a file system "
        "that all hosts share (telemetry.run_folder), and start all processes in the same working "
        "directory"));
  }
  status = AgreeOnStatus(control(), kChannel, status);
  if (leads()) unlink(path.c_str());
  return status;
}

void JoinedProcesses::OnFailure(std::function<void(const absl::Status&)> act) {
  if (!alone()) membership_->OnFailure(std::move(act));
}

absl::Status JoinedProcesses::Fail(const absl::Status& error) {
  if (alone()) return error;
  if (IsAgreed(error)) {
    const absl::Status left = Leave();
    return left.ok() ? error : left;
  }
  membership_->Abort(error);
  const absl::Status failure = membership_->failure();
  return failure.ok() || !failed_elsewhere() ? error : failure;
}

bool JoinedProcesses::failed_elsewhere() const {
  return !alone() && membership_->culprit() >= 0 && membership_->culprit() != place_.process;
}

absl::Status JoinedProcesses::Leave() { return alone() ? absl::OkStatus() : membership_->Leave(); }

}  // namespace shale
