#include "engine/cluster/launch/control_service.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/cluster/launch/credentials.h"
#include "kernels/check.h"
#include "proto/control.grpc.pb.h"

namespace shale {
namespace {

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& target, const std::optional<TlsIdentity>& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // Shares no connection with other channels.
  arguments.SetMaxReceiveMessageSize(-1);                   // Trusts process 0, which limits what it sends.
  if (!tls.has_value()) return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, tls->server_name);  // `target` is a numeric address.
  const grpc::SslCredentialsOptions options = {
      .pem_root_certs = tls->authority, .pem_private_key = tls->key, .pem_cert_chain = tls->certificate};
  return grpc::CreateCustomChannel(target, grpc::SslCredentials(options), arguments);
}

// How long the service, when it ends, waits for messages that it is still sending.
constexpr std::chrono::milliseconds kLastWords(500);

std::shared_ptr<grpc::ServerCredentials> Credentials(const std::optional<TlsIdentity>& tls) {
  if (!tls.has_value()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls->authority;
  options.pem_key_cert_pairs = {{.private_key = tls->key, .cert_chain = tls->certificate}};
  return grpc::SslServerCredentials(options);
}

}  // namespace

class ControlConnection::Call : public grpc::ClientBidiReactor<FromMember, ToMember> {
 public:
  Call(const std::string& target, const std::optional<TlsIdentity>& tls, const std::string& token,
       std::function<void(const ToMember&)> take, std::function<void(const absl::Status&)> end)
      : take_(std::move(take)), end_(std::move(end)), stub_(Control::NewStub(ChannelTo(target, tls))) {
    context_.AddMetadata("shale-token-bin", token);
    stub_->async()->Attend(&context_, this);
    AddHold();  // Because writes also begin outside of gRPC's callbacks. Advance removes it.
    StartRead(&in_);
    StartCall();
  }

  void CancelAndWait() {
    context_.TryCancel();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }

  void Send(FromMember message) {
    outbox_.Push(std::move(message));
    Advance();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      take_(in_);
      return StartRead(&in_);
    }
    outbox_.EndNow();
    Advance();
  }
  void OnWriteDone(bool ok) override {
    outbox_.Written();
    if (!ok) outbox_.EndNow();
    Advance();
  }
  void OnDone(const grpc::Status& status) override {
    // gRPC and Abseil number their codes alike.
    end_(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

 private:
  void Advance() {
    if (const FromMember* message = outbox_.Next()) {
      StartWrite(message);
    } else if (outbox_.Close()) {
      RemoveHold();
    }
  }

  const std::function<void(const ToMember&)> take_;
  const std::function<void(const absl::Status&)> end_;
  const std::unique_ptr<Control::Stub> stub_;
  grpc::ClientContext context_;
  ToMember in_;
  Outbox<FromMember> outbox_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

ControlConnection::ControlConnection(const std::string& target, const std::optional<TlsIdentity>& tls,
                                     const std::string& token, std::function<void(const ToMember&)> take,
                                     std::function<void(const absl::Status&)> end)
    : call_(std::make_unique<Call>(target, tls, token, std::move(take), std::move(end))) {}

ControlConnection::~ControlConnection() { call_->CancelAndWait(); }

void ControlConnection::Send(FromMember message) { call_->Send(std::move(message)); }

class ControlServer::Impl : public Control::CallbackService {
 public:
  Impl(const CoordinatorOptions& options, std::string token)
      : token_(std::move(token)),
        coordinator_(options, [this](int64_t connection, ToMember message) { Queue(connection, std::move(message)); }) {
  }

  ~Impl() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (poller_.joinable()) poller_.join();
    // Cancels the calls that have not ended by themselves after kLastWords, and waits for their last callbacks.
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kLastWords);
    server_.reset();
  }

  absl::Status Start(const std::optional<TlsIdentity>& tls, const HostAddress& address, const std::vector<int>& ports) {
    absl::Status listening = absl::InvalidArgumentError("no port for process 0 was given");
    for (const int port : ports) {
      listening = CheckCanListen(address, port);
      if (!listening.ok()) continue;
      grpc::ServerBuilder builder;
      builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Otherwise two jobs would share a port.
      builder.SetMaxReceiveMessageSize(static_cast<int>(ControlPlane::kMostMessageBytes) + 4096);
      builder.SetMaxSendMessageSize(-1);
      builder.AddListeningPort(address.WithPort(port), Credentials(tls), &port_);
      builder.RegisterService(this);
      server_ = builder.BuildAndStart();
      if (server_ != nullptr && port_ != 0) break;
      server_ = nullptr;
      listening = absl::UnavailableError(absl::StrCat("cannot serve on ", address.WithPort(port)));
    }
    if (!listening.ok()) return listening;
    poller_ = std::thread([this] { PollUntilStopped(); });
    return absl::OkStatus();
  }

  int port() const { return port_; }

  bool WaitForEnd(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return coordinator_.ended(); });
  }

  absl::Status failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return coordinator_.failure();
  }

  grpc::ServerBidiReactor<FromMember, ToMember>* Attend(grpc::CallbackServerContext* context) override;

 private:
  class Stream;

  // Puts a message into the outbox of a connection. The coordinator calls it. REQUIRES: mutex_ is held.
  void Queue(int64_t connection, ToMember message);
  void PollUntilStopped();
  // Calls `work` with the coordinator under mutex_, then writes the messages that it queued.
  template <class Work>
  void WithCoordinator(const Work& work);

  const std::string token_;
  std::mutex mutex_;  // Guards the fields below, except server_, port_ and poller_.
  std::condition_variable changed_;
  bool stopping_ = false;
  int64_t connections_ = 0;
  std::map<int64_t, std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Stream>> to_write_;
  Coordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::thread poller_;
};

// The call of one process. Lives until gRPC calls OnDone.
class ControlServer::Impl::Stream : public grpc::ServerBidiReactor<FromMember, ToMember> {
 public:
  Stream(Impl& impl, int64_t connection) : impl_(impl), connection_(connection) {}
  void Begin() { StartRead(&in_); }

  Outbox<ToMember>& outbox() { return outbox_; }
  // Starts the next write if none is under way, or ends the call if the outbox has ended.
  void Advance() {
    if (const ToMember* message = outbox_.Next()) {
      StartWrite(message);
    } else if (outbox_.Close()) {
      Finish(grpc::Status::OK);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      outbox_.EndNow();
      impl_.WithCoordinator([&](Coordinator& coordinator) { coordinator.Disconnected(connection_); });
      return Advance();
    }
    impl_.WithCoordinator([&](Coordinator& coordinator) { coordinator.Receive(connection_, in_); });
    StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    outbox_.Written();
    if (!ok) outbox_.EndNow();
    Advance();
  }
  void OnDone() override {
    std::shared_ptr<Stream> self;
    const std::lock_guard<std::mutex> lock(impl_.mutex_);
    self = std::move(impl_.streams_[connection_]);  // Is destroyed after the lock.
    impl_.streams_.erase(connection_);
    impl_.changed_.notify_all();
  }

 private:
  Impl& impl_;
  const int64_t connection_;
  FromMember in_;
  Outbox<ToMember> outbox_;
};

grpc::ServerBidiReactor<FromMember, ToMember>* ControlServer::Impl::Attend(grpc::CallbackServerContext* context) {
  class Refusal : public grpc::ServerBidiReactor<FromMember, ToMember> {
   public:
    Refusal() { Finish(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "wrong token")); }
    void OnDone() override { delete this; }
  };
  const auto token = context->client_metadata().find("shale-token-bin");
  const absl::string_view given = token == context->client_metadata().end()
                                      ? absl::string_view()
                                      : absl::string_view(token->second.data(), token->second.size());
  if (!SameToken(given, token_)) return new Refusal;
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream = std::make_shared<Stream>(*this, connections_++);
    streams_[connections_ - 1] = stream;
  }
  stream->Begin();
  return stream.get();
}

void ControlServer::Impl::Queue(int64_t connection, ToMember message) {
  const auto stream = streams_.find(connection);
  if (stream == streams_.end()) return;
  const bool last = message.has_failure() || message.has_left();
  stream->second->outbox().Push(std::move(message));
  if (last) stream->second->outbox().EndAfterThese();
  to_write_.push_back(stream->second);
}

template <class Work>
void ControlServer::Impl::WithCoordinator(const Work& work) {
  std::vector<std::shared_ptr<Stream>> to_write;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work(coordinator_);
    to_write.swap(to_write_);
    changed_.notify_all();
  }
  for (const std::shared_ptr<Stream>& stream : to_write) stream->Advance();
}

void ControlServer::Impl::PollUntilStopped() {
  const std::chrono::duration<double> pause(coordinator_.poll_seconds());
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (changed_.wait_for(lock, pause, [&] { return stopping_; })) return;
    }
    WithCoordinator([](Coordinator& coordinator) { coordinator.Poll(); });
  }
}

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() = default;

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const CoordinatorOptions& options,
                                                                    const std::optional<TlsIdentity>& tls,
                                                                    std::string token, const HostAddress& address,
                                                                    const std::vector<int>& ports) {
  auto impl = std::make_unique<Impl>(options, std::move(token));
  SHALE_RETURN_IF_ERROR(impl->Start(tls, address, ports));
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

int ControlServer::port() const { return impl_->port(); }
bool ControlServer::WaitForEnd(double seconds) { return impl_->WaitForEnd(seconds); }
absl::Status ControlServer::failure() { return impl_->failure(); }

}  // namespace shale
