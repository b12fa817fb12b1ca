#include "sharding/comm/gloo/links.h"

#include <netdb.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/transport/address.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "kernels/check.h"
#include "sharding/comm/agreement.h"

namespace shale {
namespace {

constexpr uint64_t kNeverSent = 0;  // The tag of IsLost.

// Returns the numeric form of a host name. Gloo crashes on names that do not resolve, so it gets no other names.
absl::StatusOr<std::string> Resolve(const std::string& host) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("address \"", host, "\" of this process: ", gai_strerror(error),
                                                   "; wanted a host name or address that its peers can reach"));
  }
  char numeric[NI_MAXHOST] = "";
  const int printed =
      getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof(numeric), nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  if (printed != 0) return absl::InternalError(absl::StrCat("getnameinfo: ", gai_strerror(printed)));
  return std::string(numeric);
}

// Creates Gloo's device, whose thread handles no signals of the program and inherits the blocked SIGPIPE.
std::shared_ptr<gloo::transport::Device> CreateGlooDevice(const std::string& address) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    ~Restore() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    const sigset_t& before;
  } restore{before};
  return gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
}

}  // namespace

absl::Status CallGloo(absl::FunctionRef<void()> call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    // Gloo's messages begin with a place in its sources, in brackets.
    absl::string_view message = error.what();
    if (const size_t end = message.find("] "); !message.empty() && message[0] == '[' && end != message.npos) {
      message.remove_prefix(end + 2);
    }
    return absl::UnavailableError(absl::StrCat("Gloo: ", message));
  }
}

NoBrokenPipes::NoBrokenPipes() {
  sigset_t pending, pipe;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

NoBrokenPipes::~NoBrokenPipes() {
  if (!was_pending_) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec now = {};
    while (sigtimedwait(&pipe, nullptr, &now) > 0) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

absl::Status GlooLinks::Open(const std::string& address, const GlooLayout& layout, double timeout_seconds) {
  peers_ = layout.peers();
  return CallGloo([&] {
    device_ = CreateGlooDevice(address);
    context_ = device_->createContext(layout.process(), layout.processes());
    // Gloo waits five times as long for a connection.
    context_->setTimeout(std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(timeout_seconds * 200))));
    nothing_ = context_->createUnboundBuffer(nullptr, 0);
    for (const int peer : peers_) context_->createPair(peer);
  });
}

absl::StatusOr<std::unique_ptr<GlooLinks>> GlooLinks::Connect(Store& store, const GlooLayout& layout,
                                                              const GlooMembers& members, const GlooOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const std::string address, Resolve(options.address));
  const NoBrokenPipes no_broken_pipes;
  std::unique_ptr<GlooLinks> links(new GlooLinks);
  SHALE_RETURN_IF_ERROR(links->Open(address, layout, options.connect_timeout_seconds));
  // Each process has a port for every peer, and publishes their addresses as one value, by peer.
  std::string mine;
  for (const int peer : layout.peers()) {
    const std::vector<char> bytes = links->context_->getPair(peer)->address().bytes();
    mine.append(bytes.begin(), bytes.end());
  }
  const auto key = [&](int process) { return absl::StrCat("gloo/", members.name, "/", process); };
  SHALE_RETURN_IF_ERROR(store.Put(key(layout.process()), mine));
  const size_t address_bytes = layout.peers().empty() ? 0 : mine.size() / layout.peers().size();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.connect_timeout_seconds);
  for (const int peer : layout.peers()) {
    const auto fail = [&](const absl::Status& error) {
      return absl::Status(error.code(),
                          absl::StrCat("group ", members.name, ": ", RankList(layout.local_ranks()),
                                       " cannot connect to ", RankList(layout.ranks_of(peer)), ": ", error.message()));
    };
    const std::chrono::duration<double> left = end - std::chrono::steady_clock::now();
    absl::StatusOr<std::string> theirs = store.Get(key(peer), std::max(left.count(), 1e-3));
    if (!theirs.ok()) return fail(theirs.status());
    if (theirs->size() != mine.size()) {
      return fail(absl::FailedPreconditionError(
          absl::StrCat("it has ", theirs->size(), " bytes of addresses, not ", mine.size(),
                       "; start all processes with the same program and the same ranks")));
    }
    // The peer has no port for itself, so ours comes one earlier if it is behind the peer's own number.
    const size_t index = layout.process() - (layout.process() > peer ? 1 : 0);
    const auto begin = theirs->begin() + index * address_bytes;
    const std::vector<char> bytes(begin, begin + address_bytes);
    if (absl::Status status = CallGloo([&] { links->context_->getPair(peer)->connect(bytes); }); !status.ok()) {
      return fail(status);
    }
  }
  return links;
}

std::unique_ptr<GlooBuffer> GlooLinks::Wrap(const void* memory, int64_t size_bytes) {
  return context_->createUnboundBuffer(const_cast<void*>(memory), size_bytes);
}

absl::Status GlooLinks::Transfer(absl::FunctionRef<void()> begin) {
  std::shared_lock lock(mutex_);
  if (closed_) return absl::UnavailableError("the connections are closed");
  return CallGloo(begin);
}

absl::Status GlooLinks::Send(GlooBuffer& from, int process, uint64_t tag, int64_t offset, int64_t size_bytes) {
  return Transfer([&] { from.send(process, tag, offset, size_bytes); });
}

absl::Status GlooLinks::Receive(GlooBuffer& into, int process, uint64_t tag, int64_t offset, int64_t size_bytes) {
  return Transfer([&] { into.recv(process, tag, offset, size_bytes); });
}

absl::Status GlooLinks::ReceiveFromAny(GlooBuffer& into, const std::vector<int>& processes, uint64_t tag,
                                       int64_t size_bytes) {
  return Transfer([&] { into.recv(processes, tag, 0, size_bytes); });
}

bool GlooLinks::IsLost(int process) { return !Receive(*nothing_, process, kNeverSent, 0, 0).ok(); }

void GlooLinks::Close() {
  std::unique_lock lock(mutex_);
  if (closed_) return;
  closed_ = true;
  if (context_ == nullptr) return;
  const NoBrokenPipes no_broken_pipes;
  for (const int peer : peers_) {
    CallGloo([&] { context_->getPair(peer).reset(); }).IgnoreError();
  }
}

}  // namespace shale
