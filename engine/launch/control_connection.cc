#include "engine/launch/control_connection.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "engine/launch/outbox.h"
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

}  // namespace shale
