#include "engine/cluster/launch/coordinator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr double kSettleSeconds = 0.3;
constexpr size_t kMostListed = 8;
constexpr const char* kChannelNames[kControlChannels] = {"steps", "checkpoints"};

ToMember FailureMessage(int process, const absl::Status& why) {
  ToMember message;
  message.mutable_failure()->set_process(process);
  message.mutable_failure()->set_code(static_cast<int>(why.code()));
  message.mutable_failure()->set_message(std::string(why.message()));
  return message;
}

// Returns the error of a message. Its text is cut to kMostReasonBytes and made printable.
absl::Status ReasonOf(const JobFailure& failure) {
  return absl::Status(static_cast<absl::StatusCode>(failure.code()),
                      Printable(absl::string_view(failure.message()).substr(0, kMostReasonBytes)));
}

// Returns whether an error says no more than that a peer does not answer.
bool BlamesPeers(absl::StatusCode code) {
  return code == absl::StatusCode::kAborted || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kDeadlineExceeded;
}

}  // namespace

absl::Status Declined(int process, int64_t pid, absl::string_view host, const absl::Status& why) {
  return absl::AbortedError(
      absl::StrCat("process ", process, " (pid ", pid, " on ", host, ") cannot take part: ", why.ToString()));
}

Coordinator::Coordinator(const CoordinatorOptions& options, Send send)
    : options_(options),
      send_(std::move(send)),
      members_(options.processes),
      came_(options.processes),
      join_deadline_(options.join_seconds),
      failure_(options.declines) {
  if (!failure_.ok()) came_[0] = true;
  for (Channel& channel : channels_) {
    channel.here.resize(options.processes);
    channel.messages.resize(options.processes);
  }
}

double Coordinator::poll_seconds() const {
  return std::min({options_.join_seconds, options_.heartbeat_seconds, kSettleSeconds}) / 8;
}

void Coordinator::Receive(int64_t connection, const FromMember& message) {
  const auto member = process_of_.find(connection);
  if (member == process_of_.end()) {
    if (message.has_join()) {
      Join(connection, message.join());
    } else {
      Refuse(connection, -1,
             failure_.ok() ? absl::InvalidArgumentError("the first message is no request to join") : failure_);
    }
    return;
  }
  const int process = member->second;
  if (!failure_.ok()) return;
  members_[process].heard = Deadline(SilenceSeconds(options_.heartbeat_seconds));
  switch (message.what_case()) {
    case FromMember::kHeartbeat: {
      ToMember answer;
      answer.mutable_heartbeat();
      return Tell(process, std::move(answer));
    }
    case FromMember::kArrival: return Arrive(process, message.arrival());
    case FromMember::kPut: return Put(process, message.put());
    case FromMember::kGet: return Get(process, message.get());
    case FromMember::kAbort: return TakeAbort(process, message.abort());
    case FromMember::kLeave: return TakeLeave(process);
    case FromMember::kJoin:
    case FromMember::WHAT_NOT_SET:
      return Fail(process, absl::InternalError(absl::StrCat(Name(process), " sent a message without a meaning here")));
  }
}

absl::Status Coordinator::Mismatch(const JoinRequest& request) const {
  const std::string who = absl::StrCat("process ", request.process(), " (", PrintableLine(request.host()), ")");
  if (request.version() != kControlVersion) {
    return absl::FailedPreconditionError(absl::StrCat("process 0 speaks version ", kControlVersion,
                                                      " of the control messages, ", who, " version ", request.version(),
                                                      "; start all processes from the same build"));
  }
  if (request.processes() != options_.processes) {
    return absl::FailedPreconditionError(absl::StrCat(who, " was started as one of ", request.processes(),
                                                      " processes, process 0 as one of ", options_.processes,
                                                      "; start all of them with the same number"));
  }
  const Member& there = members_[request.process()];
  if (there.presence != Presence::kAbsent) {
    return absl::FailedPreconditionError(absl::StrCat(who, ", pid ", request.pid(), ", has the number of ",
                                                      Name(request.process()), "; start each number from 0 to ",
                                                      options_.processes - 1, " once"));
  }
  for (int i = 0; i < request.facts_size() || i < static_cast<int>(options_.facts.size()); ++i) {
    const bool ours = i < static_cast<int>(options_.facts.size()), theirs = i < request.facts_size();
    if (ours && theirs && options_.facts[i].first == request.facts(i).name() &&
        options_.facts[i].second == request.facts(i).value()) {
      continue;
    }
    const auto show = [](bool has, absl::string_view name, absl::string_view value) {
      return has ? absl::StrCat(PrintableLine(name), " ", Quoted(value)) : std::string("nothing of the kind");
    };
    return absl::FailedPreconditionError(absl::StrCat(
        "processes disagree: process 0 has ",
        show(ours, ours ? options_.facts[i].first : "", ours ? options_.facts[i].second : ""), ", ", who, " has ",
        show(theirs, theirs ? request.facts(i).name() : "", theirs ? request.facts(i).value() : ""),
        "; start all of them with the same program, job and data"));
  }
  return absl::OkStatus();
}

void Coordinator::Join(int64_t connection, const JoinRequest& request) {
  const int process = request.process();
  if (!failure_.ok()) {
    if (process >= 0 && process < options_.processes) came_[process] = true;
    return Refuse(connection, -1, failure_);
  }
  bool too_long = request.host().size() > kMostNameBytes || request.launch().size() > kMostNameBytes;
  for (const JoinRequest::Fact& fact : request.facts()) {
    too_long = too_long || fact.name().size() > kMostNameBytes || fact.value().size() > kMostNameBytes;
  }
  if (too_long) return Refuse(connection, process, absl::InvalidArgumentError("a name in the request is too long"));
  if (request.launch() != options_.launch) {
    return Refuse(connection, process,
                  absl::UnavailableError(absl::StrCat("another launch listens there: ", Quoted(options_.launch),
                                                      "; this process belongs to ", Quoted(request.launch()))));
  }
  if (process < 0 || (process >= options_.processes && request.processes() == options_.processes)) {
    return Refuse(connection, process, absl::InvalidArgumentError(absl::StrCat("there is no process ", process)));
  }
  if (process < options_.processes) came_[process] = true;
  if (request.has_declines()) return TakeDecline(connection, request);
  if (const absl::Status mismatch = Mismatch(request); !mismatch.ok()) {
    Refuse(connection, process, mismatch);
    // While the job forms, the place of the refused process stays empty. A job that runs is not disturbed.
    if (!formed_) Fail(process, mismatch);
    return;
  }
  members_[process] = {.presence = Presence::kJoined,
                       .connection = connection,
                       .host = PrintableLine(request.host()),
                       .pid = request.pid(),
                       .heard = Deadline(SilenceSeconds(options_.heartbeat_seconds))};
  process_of_[connection] = process;
  ++joined_;
  ToMember joined;
  joined.mutable_joined();
  Tell(process, std::move(joined));
  FormIfComplete();
}

void Coordinator::TakeDecline(int64_t connection, const JoinRequest& request) {
  const absl::Status why =
      Declined(request.process(), request.pid(), PrintableLine(request.host()), ReasonOf(request.declines()));
  Refuse(connection, request.process(), why);
  if (!formed_) Fail(request.process(), why);
}

void Coordinator::FormIfComplete() {
  if (joined_ < options_.processes) return;
  formed_ = true;
  ToMember formed;
  std::map<std::string, int> numbers;
  for (const Member& member : members_) {
    const auto [number, is_new] = numbers.try_emplace(member.host, static_cast<int>(numbers.size()));
    if (is_new) formed.mutable_formed()->add_hosts(member.host);
    formed.mutable_formed()->add_host_of_process(number->second);
  }
  for (int process = 0; process < options_.processes; ++process) Tell(process, formed);
}

void Coordinator::Arrive(int process, const Arrival& arrival) {
  if (!formed_ || arrival.channel() >= kControlChannels || !Arrival::Kind_IsValid(arrival.kind())) {
    return Fail(process, absl::InternalError(absl::StrCat(Name(process), " came to a channel that does not exist")));
  }
  Channel& channel = channels_[arrival.channel()];
  const std::string call = absl::StrCat("call ", channel.round, " on channel ", kChannelNames[arrival.channel()]);
  if (arrival.round() != channel.round || channel.here[process]) {
    return Fail(process, absl::InternalError(absl::StrCat(Name(process), " came to call ", arrival.round(),
                                                          " while the others are at ", call)));
  }
  if (channel.arrived > 0 && arrival.kind() != channel.kind) {
    const std::string others = List([&](int other) { return channel.here[other]; });
    return Fail(process,
                absl::InternalError(absl::StrCat(Name(process), " wants a ", Arrival::Kind_Name(arrival.kind()), " in ",
                                                 call, ", ", others, " a ", Arrival::Kind_Name(channel.kind))));
  }
  channel.bytes += static_cast<int64_t>(arrival.message().size());
  if (channel.bytes > kMostGatheredBytes) {
    return Fail(process, absl::ResourceExhaustedError(absl::StrCat("the messages of ", call, " have more than ",
                                                                   kMostGatheredBytes, " bytes together")));
  }
  if (channel.arrived == 0) channel.deadline = Deadline(options_.wait_seconds);
  channel.kind = arrival.kind();
  channel.here[process] = true;
  channel.messages[process] = arrival.message();
  const std::string left =
      List([&](int other) { return members_[other].presence == Presence::kLeft && !channel.here[other]; });
  if (!left.empty()) {
    return Fail(process, absl::AbortedError(
                             absl::StrCat(Name(process), " waits in ", call, ", but ", left, " has left the job")));
  }
  if (++channel.arrived < options_.processes) return;
  ToMember answer;
  Gathered& gathered = *answer.mutable_gathered();
  gathered.set_channel(arrival.channel());
  gathered.set_round(channel.round);
  const int wanted = channel.kind == Arrival::GATHER ? options_.processes : channel.kind == Arrival::BROADCAST ? 1 : 0;
  for (int other = 0; other < wanted; ++other) gathered.add_messages(std::move(channel.messages[other]));
  ++channel.round;
  channel.arrived = 0;
  channel.bytes = 0;
  channel.here.assign(options_.processes, false);
  channel.messages.assign(options_.processes, "");
  for (int other = 0; other < options_.processes; ++other) Tell(other, answer);
}

void Coordinator::Put(int process, const KeyValue& pair) {
  const std::string what = absl::StrCat(Name(process), " stores ", Quoted(pair.key()));
  if (pair.key().size() > kMostNameBytes || pair.value().size() > kMostValueBytes) {
    return Fail(process, absl::InvalidArgumentError(absl::StrCat(what, ", which is longer than allowed")));
  }
  const auto [stored, is_new] = values_.try_emplace(pair.key(), pair.value());
  if (!is_new) {
    if (stored->second == pair.value()) return;
    return Fail(process, absl::AlreadyExistsError(absl::StrCat(what, ", which has another value already")));
  }
  stored_bytes_ += static_cast<int64_t>(pair.key().size() + pair.value().size());
  if (stored_bytes_ > kMostStoredBytes) {
    return Fail(process, absl::ResourceExhaustedError(
                             absl::StrCat(what, "; keys and values may have ", kMostStoredBytes, " bytes together")));
  }
  const auto waiting = waiting_.find(pair.key());
  if (waiting == waiting_.end()) return;
  ToMember answer;
  *answer.mutable_value() = pair;
  for (const int other : waiting->second) Tell(other, answer);
  waiting_.erase(waiting);
}

void Coordinator::Get(int process, const KeyRequest& request) {
  if (request.key().size() > kMostNameBytes) {
    return Fail(process, absl::InvalidArgumentError(absl::StrCat(Name(process), " asks for a key that is too long")));
  }
  const auto found = values_.find(request.key());
  if (found != values_.end()) {
    ToMember answer;
    answer.mutable_value()->set_key(found->first);
    answer.mutable_value()->set_value(found->second);
    return Tell(process, std::move(answer));
  }
  std::vector<int>& waiting = waiting_[request.key()];
  if (std::find(waiting.begin(), waiting.end(), process) != waiting.end()) return;
  waiting.push_back(process);
}

void Coordinator::TakeAbort(int process, const JobFailure& abort) {
  const absl::Status reason = ReasonOf(abort);
  const absl::Status why = absl::AbortedError(absl::StrCat(Name(process), " ended the job: ", reason.ToString()));
  if (!BlamesPeers(reason.code())) return Fail(process, why);
  if (suspect_ >= 0) return;
  suspect_ = process;
  suspicion_ = why;
  suspicion_deadline_ = Deadline(kSettleSeconds);
}

void Coordinator::TakeLeave(int process) {
  members_[process].presence = Presence::kLeft;
  ToMember left;
  left.mutable_left();
  Tell(process, std::move(left));
  for (size_t number = 0; number < channels_.size(); ++number) {
    const Channel& channel = channels_[number];
    if (channel.arrived == 0 || channel.here[process]) continue;
    const std::string waiting = List([&](int other) { return channel.here[other]; });
    return Fail(process, absl::AbortedError(absl::StrCat(Name(process), " has left the job, but ", waiting,
                                                         " wait for it in call ", channel.round, " on channel ",
                                                         kChannelNames[number])));
  }
}

void Coordinator::Disconnected(int64_t connection) {
  const auto found = process_of_.find(connection);
  if (found == process_of_.end()) return;
  const int process = found->second;
  process_of_.erase(found);
  Member& member = members_[process];
  if (member.presence == Presence::kLeft) return;
  member.presence = Presence::kGone;
  Fail(process, absl::AbortedError(absl::StrCat(Name(process), " ended without leaving the job")));
}

void Coordinator::Poll() {
  if (!failure_.ok()) return;
  for (int process = 0; process < options_.processes; ++process) {
    Member& member = members_[process];
    if (member.presence != Presence::kJoined || !member.heard.Passed()) continue;
    Fail(process, absl::AbortedError(absl::StrCat(Name(process), " has not been heard from for ",
                                                  SilenceSeconds(options_.heartbeat_seconds),
                                                  " s: it hangs, is stopped, or is cut off from the network")));
    // It has been told, in case it goes on, but nobody waits for it.
    process_of_.erase(member.connection);
    member.presence = Presence::kGone;
    return;
  }
  if (suspect_ >= 0 && suspicion_deadline_.Passed()) return Fail(suspect_, suspicion_);
  if (!formed_ && join_deadline_.Passed()) {
    const std::string missing = List([&](int other) { return members_[other].presence == Presence::kAbsent; });
    return Fail(
        -1, absl::DeadlineExceededError(absl::StrCat(missing, " of ", options_.processes,
                                                     " did not join the job within ", options_.join_seconds, " s")));
  }
  for (size_t number = 0; number < channels_.size(); ++number) {
    Channel& channel = channels_[number];
    if (channel.arrived == 0 || !channel.deadline.Passed()) continue;
    const std::string missing = List([&](int other) { return !channel.here[other]; });
    return Fail(
        -1, absl::DeadlineExceededError(absl::StrCat(missing, " did not come to call ", channel.round, " on channel ",
                                                     kChannelNames[number], " within ", options_.wait_seconds, " s")));
  }
}

bool Coordinator::ended() const {
  if (!failure_.ok()) {
    return process_of_.empty() && (formed_ || std::find(came_.begin(), came_.end(), false) == came_.end());
  }
  return formed_ && std::all_of(members_.begin(), members_.end(),
                                [](const Member& member) { return member.presence == Presence::kLeft; });
}

void Coordinator::Tell(int process, ToMember message) {
  if (members_[process].connection >= 0 && members_[process].presence != Presence::kGone) {
    send_(members_[process].connection, std::move(message));
  }
}

void Coordinator::Refuse(int64_t connection, int process, const absl::Status& why) {
  send_(connection, FailureMessage(process, why));
}

void Coordinator::Fail(int process, const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  for (int other = 0; other < options_.processes; ++other) {
    if (members_[other].presence == Presence::kJoined) Tell(other, FailureMessage(process, why));
  }
}

std::string Coordinator::Name(int process) const {
  return absl::StrCat("process ", process, " (pid ", members_[process].pid, " on ", members_[process].host, ")");
}

std::string Coordinator::List(const std::function<bool(int process)>& chosen) const {
  std::vector<int> numbers;
  for (int process = 0; process < options_.processes; ++process) {
    if (chosen(process)) numbers.push_back(process);
  }
  if (numbers.empty()) return "";
  const size_t listed = std::min(numbers.size(), kMostListed);
  const std::string more = numbers.size() > listed ? absl::StrCat(" and ", numbers.size() - listed, " more") : "";
  return absl::StrCat(numbers.size() == 1 ? "process " : "processes ",
                      absl::StrJoin(numbers.begin(), numbers.begin() + listed, ", "), more);
}

}  // namespace shale
