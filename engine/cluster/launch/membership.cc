#include "engine/cluster/launch/membership.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/cluster/launch/control_service.h"
#include "engine/cluster/launch/host_address.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"
#include "sharding/comm/deadline.h"

namespace shale {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kAbortSeconds = 2;  // How long to wait until the others know of an abort.
constexpr double kPauseBetweenAttempts = 0.05;
// If a listener closes every connection for this long, this process concludes that it is process 0, and that it does
// not accept the certificate of this process.
constexpr double kClosingSeconds = 3;
constexpr double kPauseAfterClosing = 0.5;  // Long, because process 0 prints a line for each attempt.
constexpr const char* kWhatToGive =
    "give all processes certificates that each other's authorities sign (SHALE_TLS_CERTIFICATE, SHALE_TLS_KEY, "
    "SHALE_TLS_AUTHORITY), or none of them";

// Return whether gRPC's error means that one side does not trust the other, or that the other side closed the
// connection. If another release of gRPC words this differently, this process tries until its deadline.
bool SaysDistrust(absl::string_view message) {
  return absl::StrContains(message, "Ssl handshake failed") || absl::StrContains(message, "not in peer certificate");
}
bool SaysClosed(absl::string_view message) {
  return absl::StrContains(message, "Socket closed") || absl::StrContains(message, "Connection reset by peer");
}

}  // namespace

class Membership::Impl {
 public:
  // `declines` is why the process cannot take part; OK if it can.
  explicit Impl(const MembershipOptions& options, absl::Status declines = absl::OkStatus())
      : options_(options), declines_(std::move(declines)) {}

  ~Impl() {
    if (joined()) {
      Abort(absl::CancelledError("it gave up its membership without leaving"));
    }
    StopHeart();
    connection_.reset();
    // Lets the others hear why the job has failed, before the service ends.
    if (server_ != nullptr) server_->WaitForEnd(kAbortSeconds);
  }

  absl::Status Join();
  void Decline();
  absl::StatusOr<std::vector<std::string>> Call(ControlChannel channel, Arrival::Kind kind, std::string message);
  absl::Status Put(const std::string& key, const std::string& value);
  absl::StatusOr<std::string> Get(const std::string& key, double seconds);
  void Abort(const absl::Status& why);
  absl::Status Leave();
  void OnFailure(std::function<void(const absl::Status&)> act);

  absl::Status failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }
  int culprit() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return culprit_;
  }
  bool needed() const { return server_ != nullptr && !server_->WaitForEnd(0); }
  const ProcessPlace& place() const { return options_.place; }
  int host_of(int process) const { return host_of_process_[process]; }
  const std::string& address() const { return address_; }

 private:
  absl::Status Serve();
  // Tries once to join at this port. Returns OK when the job has formed. Sets `again` to whether a later attempt may
  // succeed.
  absl::Status Attempt(const HostAddress& host, int port, bool& again);
  // Returns the error of a call that ended with `end` before process 0 answered. Sets `again` like Attempt.
  absl::Status Unanswered(const absl::Status& end, bool& again);
  FromMember JoinMessage() const;
  JobFailure Failure(const absl::Status& why) const;  // Returns a failure that this process made.
  void Take(const ToMember& message);
  void TakeEnd(const absl::Status& status);
  void Fail(int culprit, const absl::Status& why);
  void Beat();
  void StopHeart();
  bool joined() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return formed_ && !left_ && failure_.ok();
  }

  const MembershipOptions options_;
  const absl::Status declines_;
  std::unique_ptr<ControlServer> server_;          // In process 0.
  std::string peer_;                               // Where process 0 is, for messages.
  std::optional<Clock::time_point> closed_since_;  // When process 0 first closed a connection without an answer.
  std::vector<int> host_of_process_;               // Set once, before Join returns.
  std::string address_;                            // Set once, before Join returns.

  std::mutex mutex_;  // Guards the fields below.
  std::condition_variable changed_;
  bool accepted_ = false, formed_ = false, left_ = false, ended_ = false, stopping_ = false;
  absl::Status end_;  // Of the call.
  absl::Status failure_;
  int culprit_ = -1;
  std::function<void(const absl::Status&)> act_;
  std::array<uint64_t, kControlChannels> rounds_ = {};
  std::array<std::optional<Gathered>, kControlChannels> gathered_;
  std::map<std::string, std::string> values_;
  Deadline heard_;

  std::unique_ptr<ControlConnection> connection_;  // Calls back until it is destroyed.
  std::thread heart_;
};

absl::Status Membership::Impl::Serve() {
  const CoordinatorOptions coordinator = {
      .processes = place().processes,
      .launch = place().launch,
      .facts = options_.facts,
      .declines = declines_.ok() ? absl::OkStatus() : Declined(0, getpid(), ThisHost(), declines_),
      .join_seconds = options_.join_seconds,
      .heartbeat_seconds = options_.heartbeat_seconds,
      .wait_seconds = options_.wait_seconds};
  SHALE_ASSIGN_OR_RETURN(const HostAddress address, ResolveHost(place().address));
  SHALE_ASSIGN_OR_RETURN(server_,
                         ControlServer::Start(coordinator, options_.tls, options_.token, address, place().ports));
  return absl::OkStatus();
}

absl::Status Membership::Impl::Join() {
  if (place().process == 0) SHALE_RETURN_IF_ERROR(Serve());
  const Clock::time_point start = Clock::now();
  absl::Status last, distrust;
  for (size_t attempt = 0;; ++attempt) {
    const int port = server_ != nullptr ? server_->port() : place().ports[attempt % place().ports.size()];
    peer_ = absl::StrCat(place().address, ":", port);
    const absl::StatusOr<HostAddress> host = ResolveHost(place().address);
    bool again = true;
    last = host.ok() ? Attempt(*host, port, again) : host.status();
    if (last.ok()) {
      SHALE_ASSIGN_OR_RETURN(address_, AddressTowards(*host, port));
      return absl::OkStatus();
    }
    if (!again) return last;
    if (absl::IsPermissionDenied(last)) distrust = last;  // Tells more than the error of a closed port.
    if (Seconds(Clock::now() - start).count() > options_.join_seconds) break;
    std::this_thread::sleep_for(Seconds(closed_since_.has_value() ? kPauseAfterClosing : kPauseBetweenAttempts));
  }
  if (!distrust.ok()) last = distrust;
  const std::string text = absl::StrCat("process ", place().process, " could not join the job at ", peer_, " within ",
                                        options_.join_seconds, " s: ", last.message());
  return last.code() == absl::StatusCode::kNotFound ? absl::NotFoundError(text) : absl::DeadlineExceededError(text);
}

void Membership::Impl::Decline() {
  if (place().process > 0) return Join().IgnoreError();  // Always fails, because JoinMessage holds `declines_`.
  if (Serve().ok()) server_->WaitForEnd(options_.join_seconds);
}

JobFailure Membership::Impl::Failure(const absl::Status& why) const {
  JobFailure failure;
  failure.set_process(place().process);
  failure.set_code(static_cast<int>(why.code()));
  failure.set_message(std::string(why.message().substr(0, kMostReasonBytes)));
  return failure;
}

FromMember Membership::Impl::JoinMessage() const {
  FromMember message;
  JoinRequest& join = *message.mutable_join();
  join.set_version(kControlVersion);
  join.set_launch(place().launch);
  join.set_process(place().process);
  join.set_processes(place().processes);
  for (const auto& [name, value] : options_.facts) {
    JoinRequest::Fact& fact = *join.add_facts();
    fact.set_name(name);
    fact.set_value(value);
  }
  join.set_host(ThisHost());
  join.set_pid(getpid());
  if (!declines_.ok()) *join.mutable_declines() = Failure(declines_);
  return message;
}

absl::Status Membership::Impl::Unanswered(const absl::Status& end, bool& again) {
  if (end.code() == absl::StatusCode::kUnauthenticated) {
    return absl::PermissionDeniedError(
        absl::StrCat("process 0 at ", peer_, " has another token than process ", place().process,
                     "; give all processes of the job the same one (SHALE_TOKEN_FILE or SHALE_TOKEN)"));
  }
  // Another launch may listen on one of several ports; a single port was meant for this one.
  const bool sure = server_ != nullptr || place().ports.size() == 1;
  const std::string us = absl::StrCat("process ", place().process);
  if (options_.tls.has_value() && SaysDistrust(end.message())) {
    again = !sure;
    return absl::PermissionDeniedError(absl::StrCat(
        us, " does not trust process 0 at ", peer_, ", for which it wants a certificate for ",
        Quoted(options_.tls->server_name), " (SHALE_TLS_SERVER_NAME): ", end.message(), "; ", kWhatToGive));
  }
  again = true;
  if (!SaysClosed(end.message())) {
    closed_since_.reset();
    return absl::UnavailableError(end.message());
  }
  if (!closed_since_.has_value()) closed_since_ = Clock::now();
  again = !sure || Seconds(Clock::now() - *closed_since_).count() < kClosingSeconds;
  return absl::PermissionDeniedError(absl::StrCat(
      "process 0 at ", peer_, " closes every connection of ", us, ", which has ",
      options_.tls.has_value() ? "a certificate" : "no certificate", ", before it answers: it ",
      options_.tls.has_value() ? "does not accept that, or has none itself" : "probably wants one", "; ", kWhatToGive));
}

absl::Status Membership::Impl::Attempt(const HostAddress& host, int port, bool& again) {
  again = false;
  connection_.reset();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    accepted_ = formed_ = ended_ = false;
    failure_ = end_ = absl::OkStatus();
    heard_ = Deadline(SilenceSeconds(options_.heartbeat_seconds));
  }
  connection_ = std::make_unique<ControlConnection>(
      host.Target(port), options_.tls, options_.token, [this](const ToMember& message) { Take(message); },
      [this](const absl::Status& status) { TakeEnd(status); });
  connection_->Send(JoinMessage());
  std::unique_lock<std::mutex> lock(mutex_);
  const auto decided = [&] { return accepted_ || ended_ || !failure_.ok(); };
  if (!changed_.wait_for(lock, Seconds(options_.heartbeat_seconds), decided)) {
    again = true;
    return absl::UnavailableError(absl::StrCat("no answer for ", options_.heartbeat_seconds, " s"));
  }
  if (!accepted_ && failure_.ok()) return Unanswered(end_, again);
  if (!accepted_) {
    // Another launch may listen on one of several ports; a single port was meant for this one.
    again = failure_.code() == absl::StatusCode::kUnavailable && place().ports.size() > 1;
    return failure_;
  }
  lock.unlock();
  heart_ = std::thread([this] { Beat(); });
  lock.lock();
  // The service has the deadline, and knows who is missing.
  changed_.wait(lock, [&] { return formed_ || !failure_.ok(); });
  return formed_ ? absl::OkStatus() : failure_;  // The job may have formed and failed since. Then the next call fails.
}

void Membership::Impl::Take(const ToMember& message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    heard_ = Deadline(SilenceSeconds(options_.heartbeat_seconds));
    switch (message.what_case()) {
      case ToMember::kJoined: accepted_ = true; break;
      case ToMember::kFormed:
        host_of_process_.assign(message.formed().host_of_process().begin(), message.formed().host_of_process().end());
        formed_ = true;
        break;
      case ToMember::kGathered:
        if (message.gathered().channel() < kControlChannels) {
          gathered_[message.gathered().channel()] = message.gathered();
        }
        break;
      case ToMember::kValue: values_[message.value().key()] = message.value().value(); break;
      case ToMember::kLeft: left_ = true; break;
      default: break;
    }
    changed_.notify_all();
  }
  if (message.has_failure()) {
    Fail(message.failure().process(),
         absl::Status(static_cast<absl::StatusCode>(message.failure().code()), Printable(message.failure().message())));
  }
}

void Membership::Impl::TakeEnd(const absl::Status& status) {
  bool lost = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    end_ = status;
    lost = accepted_ && !left_;
    changed_.notify_all();
  }
  if (lost) {
    Fail(0, absl::AbortedError(absl::StrCat("process 0 at ", peer_,
                                            ", which runs the control plane, has ended or cannot "
                                            "be reached any more: ",
                                            status.message())));
  }
}

void Membership::Impl::Fail(int culprit, const absl::Status& why) {
  std::function<void(const absl::Status&)> act;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    culprit_ = culprit;
    act.swap(act_);
    changed_.notify_all();
  }
  if (act) act(why);
}

void Membership::Impl::OnFailure(std::function<void(const absl::Status&)> act) {
  absl::Status failed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    failed = failure_;
    if (failed.ok()) act_ = std::move(act);
  }
  if (!failed.ok()) act(failed);
}

void Membership::Impl::Beat() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && failure_.ok() && !left_) {
    const bool silent = heard_.Passed();
    lock.unlock();
    if (silent) {
      return Fail(0, absl::AbortedError(absl::StrCat("process 0 at ", peer_, " has not been heard from for ",
                                                     SilenceSeconds(options_.heartbeat_seconds),
                                                     " s: it hangs, is stopped, or is cut off from the network")));
    }
    FromMember beat;
    beat.mutable_heartbeat();
    connection_->Send(std::move(beat));
    lock.lock();
    changed_.wait_for(lock, Seconds(BeatSeconds(options_.heartbeat_seconds)), [&] { return stopping_; });
  }
}

void Membership::Impl::StopHeart() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (heart_.joinable()) heart_.join();
}

absl::StatusOr<std::vector<std::string>> Membership::Impl::Call(ControlChannel channel, Arrival::Kind kind,
                                                                std::string message) {
  if (static_cast<int64_t>(message.size()) > kMostMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message between processes has ", message.size(), " bytes; it may have ", kMostMessageBytes));
  }
  const auto number = static_cast<size_t>(channel);
  FromMember request;
  request.mutable_arrival()->set_channel(static_cast<uint32_t>(number));
  request.mutable_arrival()->set_kind(kind);
  request.mutable_arrival()->set_message(std::move(message));
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (left_) return absl::FailedPreconditionError("this process has left the job");
  request.mutable_arrival()->set_round(rounds_[number]++);
  lock.unlock();
  connection_->Send(std::move(request));
  lock.lock();
  // The service has the deadline, and knows who is missing.
  changed_.wait(lock, [&] { return gathered_[number].has_value() || !failure_.ok(); });
  if (!gathered_[number].has_value()) return failure_;
  std::vector<std::string> messages(std::make_move_iterator(gathered_[number]->mutable_messages()->begin()),
                                    std::make_move_iterator(gathered_[number]->mutable_messages()->end()));
  gathered_[number].reset();
  return messages;
}

absl::Status Membership::Impl::Put(const std::string& key, const std::string& value) {
  SHALE_RETURN_IF_ERROR(failure());
  if (key.size() > kMostNameBytes || value.size() > kMostValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("key ", Quoted(key), " has ", key.size(), " bytes and a value of ",
                                                   value.size(), "; they may have ", kMostNameBytes, " and ",
                                                   kMostValueBytes));
  }
  FromMember request;
  request.mutable_put()->set_key(key);
  request.mutable_put()->set_value(value);
  connection_->Send(std::move(request));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Membership::Impl::Get(const std::string& key, double seconds) {
  FromMember request;
  request.mutable_get()->set_key(key);
  connection_->Send(std::move(request));
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, Seconds(seconds), [&] { return values_.contains(key) || !failure_.ok(); });
  if (const auto found = values_.find(key); found != values_.end()) return found->second;
  if (!failure_.ok()) return failure_;
  return absl::DeadlineExceededError(absl::StrCat("no process stored ", Quoted(key), " within ", seconds, " s"));
}

void Membership::Impl::Abort(const absl::Status& why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok() || left_) return;
  }
  FromMember message;
  *message.mutable_abort() = Failure(why);
  connection_->Send(std::move(message));
  {
    // The service answers everybody with the failure that it announces.
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, Seconds(kAbortSeconds), [&] { return !failure_.ok(); });
  }
  Fail(place().process, why);  // If there was no answer.
}

absl::Status Membership::Impl::Leave() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (left_) return absl::OkStatus();
  }
  FromMember message;
  message.mutable_leave();
  connection_->Send(std::move(message));
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return left_ || !failure_.ok(); });
    if (!left_) return failure_;
  }
  if (server_ == nullptr) return absl::OkStatus();
  const bool ended = server_->WaitForEnd(options_.wait_seconds);
  SHALE_RETURN_IF_ERROR(server_->failure());
  if (ended) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("other processes did not leave the job within ", options_.wait_seconds, " s after process 0"));
}

Membership::Membership(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Membership::~Membership() = default;

void Membership::Decline(const MembershipOptions& options, const absl::Status& why) {
  if (!options.place.address.empty() && !options.place.ports.empty()) Impl(options, why).Decline();
}

absl::StatusOr<std::unique_ptr<Membership>> Membership::Join(const MembershipOptions& options) {
  if (options.place.address.empty() || options.place.ports.empty()) {
    return absl::InvalidArgumentError("a job of several processes needs the address and a port of process 0");
  }
  auto impl = std::make_unique<Impl>(options);
  SHALE_RETURN_IF_ERROR(impl->Join());
  return std::unique_ptr<Membership>(new Membership(std::move(impl)));
}

int Membership::process() const { return impl_->place().process; }
int Membership::processes() const { return impl_->place().processes; }

absl::StatusOr<std::vector<std::string>> Membership::Gather(ControlChannel channel, std::string message) {
  return impl_->Call(channel, Arrival::GATHER, std::move(message));
}

absl::StatusOr<std::string> Membership::Broadcast(ControlChannel channel, std::string message) {
  if (process() != 0) message.clear();
  SHALE_ASSIGN_OR_RETURN(std::vector<std::string> messages, impl_->Call(channel, Arrival::BROADCAST, message));
  if (messages.size() != 1) return absl::InternalError("a broadcast without a message");
  return std::move(messages[0]);
}

absl::Status Membership::Barrier(ControlChannel channel) { return impl_->Call(channel, Arrival::BARRIER, "").status(); }

int Membership::host_of(int process) const { return impl_->host_of(process); }
const std::string& Membership::address() const { return impl_->address(); }
absl::Status Membership::Put(const std::string& key, const std::string& value) { return impl_->Put(key, value); }
absl::StatusOr<std::string> Membership::Get(const std::string& key, double seconds) { return impl_->Get(key, seconds); }
void Membership::Abort(const absl::Status& why) { impl_->Abort(why); }
absl::Status Membership::failure() const { return impl_->failure(); }
int Membership::culprit() const { return impl_->culprit(); }
bool Membership::needed() const { return impl_->needed(); }
void Membership::OnFailure(std::function<void(const absl::Status&)> act) { impl_->OnFailure(std::move(act)); }
absl::Status Membership::Leave() { return impl_->Leave(); }

}  // namespace shale
