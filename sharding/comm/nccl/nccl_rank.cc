#include "sharding/comm/nccl/nccl_rank.h"

#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/agreement.h"

namespace shale {
namespace {

// If more collectives than this are pending, the launching thread reaps finished ones. Usually the watchdog does it.
constexpr size_t kManyPending = 256;

// Pauses between polls of a launch. The pauses become longer, because NCCL usually puts a collective on its stream
// within about ten microseconds, unless it has to make connections.
class Backoff {
 public:
  void Pause() {
    if (++pauses_ < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(pauses_ < 2 * kYields ? 20 : 500));
    }
  }

 private:
  static constexpr int kYields = 500;
  int pauses_ = 0;
};

// Returns whether NCCL refused ranks because they share a GPU. Until 2.29 it says "Duplicate GPU detected : rank 1 and
// rank 0 both on CUDA device 1000", since then "Multiple Ranks are using the same GPU/Partition".
bool TellsOfASharedGpu(const std::string& error) {
  return absl::StrContains(error, "Duplicate GPU") || absl::StrContains(error, "using the same GPU");
}

absl::StatusCode CodeOf(NcclResult result) {
  switch (result) {
    case NcclResult::kInvalidArgument:
    case NcclResult::kInvalidUsage: return absl::StatusCode::kInvalidArgument;
    case NcclResult::kRemoteError: return absl::StatusCode::kUnavailable;
    default: return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string NcclCollective::ToString() const {
  return absl::StrCat("collective ", number, ", ", CollectiveText(kind, elements, dtype));
}

absl::Status NcclRank::Waited(const std::string& for_what) const {
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank(), " of ", size(), " waited ", options_.timeout_seconds, " s for ", for_what,
                   "; look for the error of a rank that is missing or calls a different collective"));
}

absl::Status NcclRank::NcclError(const std::string& during, NcclResult result) {
  const std::string last = nccl_->LastError();
  if (result == NcclResult::kInvalidUsage && TellsOfASharedGpu(last)) {
    const char* host = std::getenv("NCCL_HOSTID");
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank(), " of ", size(), ": NCCL wants a GPU of its own for every rank, and says: ", last,
        host == nullptr ? "" : absl::StrCat("; NCCL_HOSTID, which is ", host, " here, must differ between processes"),
        "; start fewer processes, or give each another GPU. Tests on too few GPUs: runtime.nccl_shares_gpus"));
  }
  return absl::Status(CodeOf(result), absl::StrCat("rank ", rank(), " of ", size(), ": NCCL failed in ", during, ": ",
                                                   nccl_->ErrorString(result), last.empty() ? "" : ": ", last,
                                                   "; NCCL_DEBUG=INFO tells more"));
}

absl::StatusOr<bool> NcclRank::Poll(const std::string& during) {
  if (comm_ == nullptr) return absl::AbortedError("aborted");
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = nccl_->CommGetAsyncError(comm_, state);
  if (asked != NcclResult::kSuccess) state = asked;
  if (state == NcclResult::kInProgress) return false;
  if (state != NcclResult::kSuccess) return NcclError(during, state);
  return true;
}

absl::Status NcclRank::BeginInit(const NcclUniqueId& id) {
  SHALE_RETURN_IF_ERROR(runtime_->SetDevice(options_.ordinal));
  std::lock_guard lock(mutex_);
  init_deadline_ = Deadline(options_.timeout_seconds);
  const NcclResult result = nccl_->CommInitRank(comm_, size(), id, rank());
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return absl::OkStatus();
  return NcclError("ncclCommInitRankConfig", result);
}

absl::StatusOr<bool> NcclRank::PollInit() {
  {
    std::lock_guard lock(mutex_);
    SHALE_ASSIGN_OR_RETURN(const bool done, Poll("ncclCommInitRankConfig"));
    if (done) return true;
  }
  if (init_deadline_.Passed()) return Waited("NCCL to connect the ranks");
  return false;
}

absl::StatusOr<CudaEventHandle> NcclRank::TakeEvent() {
  {
    std::lock_guard lock(mutex_);
    if (spare_.empty() && pending_.size() > kManyPending) SHALE_RETURN_IF_ERROR(Reap());
    if (!spare_.empty()) {
      CudaEventHandle event = std::move(spare_.back());
      spare_.pop_back();
      return event;
    }
  }
  return CudaEventHandle::Create(*runtime_, CudaEventKind::kOrder);
}

absl::Status NcclRank::AwaitLaunch(const std::string& during, Deadline& deadline) {
  for (Backoff backoff;; backoff.Pause()) {
    std::lock_guard lock(mutex_);
    SHALE_ASSIGN_OR_RETURN(const bool done, Poll(during));
    if (done) return absl::OkStatus();
    if (deadline.Passed()) return Waited(absl::StrCat("NCCL to launch ", during));
  }
}

absl::Status NcclRank::Launch(const NcclCollective& collective, cuda::StreamHandle stream,
                              absl::FunctionRef<NcclResult(NcclComm)> enqueue) {
  Pending pending = {.collective = collective};
  SHALE_ASSIGN_OR_RETURN(pending.begin, TakeEvent());
  SHALE_ASSIGN_OR_RETURN(pending.end, TakeEvent());
  SHALE_RETURN_IF_ERROR(runtime_->RecordEvent(pending.begin.get(), stream));
  Deadline deadline(options_.timeout_seconds);
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return absl::AbortedError("aborted");
    launching_ = true;
    const NcclResult result = enqueue(comm_);
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
      return NcclError(collective.ToString(), result);
    }
  }
  SHALE_RETURN_IF_ERROR(AwaitLaunch(collective.ToString(), deadline));
  SHALE_RETURN_IF_ERROR(runtime_->RecordEvent(pending.end.get(), stream));
  std::lock_guard lock(mutex_);
  launching_ = false;
  pending_.push_back(std::move(pending));
  return absl::OkStatus();
}

absl::Status NcclRank::CallAndWait(const std::string& during, absl::FunctionRef<NcclResult(NcclComm)> call) {
  SHALE_RETURN_IF_ERROR(runtime_->SetDevice(options_.ordinal));
  Deadline deadline(options_.timeout_seconds);
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return absl::AbortedError("aborted");
    launching_ = true;
    const NcclResult result = call(comm_);
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) return NcclError(during, result);
  }
  SHALE_RETURN_IF_ERROR(AwaitLaunch(during, deadline));
  std::lock_guard lock(mutex_);
  launching_ = false;
  return absl::OkStatus();
}

absl::Status NcclRank::RegisterWindow(void* memory, int64_t size_bytes) {
  if (window_ != nullptr) return absl::FailedPreconditionError("this communicator already has a window");
  SHALE_RETURN_IF_ERROR(CallAndWait("ncclCommWindowRegister", [&](NcclComm comm) {
    return nccl_->CommWindowRegister(comm, memory, size_bytes, window_);
  }));
  if (window_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank(), " of ", size(),
                   ": NCCL cannot make a symmetric window between these GPUs; remove runtime.nccl_windows"));
}

absl::Status NcclRank::DeregisterWindow() {
  const NcclWindow window = std::exchange(window_, nullptr);
  if (window == nullptr) return absl::OkStatus();
  const absl::Status status =
      CallAndWait("ncclCommWindowDeregister", [&](NcclComm comm) { return nccl_->CommWindowDeregister(comm, window); });
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

absl::Status NcclRank::Reap() {
  while (!pending_.empty()) {
    Pending& front = pending_.front();
    SHALE_ASSIGN_OR_RETURN(const bool ended, runtime_->EventReached(front.end.get()));
    if (!ended) return absl::OkStatus();
    spare_.push_back(std::move(front.begin));
    spare_.push_back(std::move(front.end));
    pending_.pop_front();
    front_began_ = false;
  }
  return absl::OkStatus();
}

absl::Status NcclRank::Check() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr || launching_) return absl::OkStatus();
  // Without SetDevice, this thread would query GPU 0 and create a context there that nothing needs.
  absl::Status gpu = runtime_->SetDevice(options_.ordinal);
  if (gpu.ok()) gpu = Reap();
  if (!gpu.ok()) {
    return absl::Status(gpu.code(), absl::StrCat("rank ", rank(), " of ", size(), ": its GPU fails: ", gpu.message()));
  }
  const std::string during =
      pending_.empty() ? std::string("the time between collectives") : pending_.front().collective.ToString();
  SHALE_RETURN_IF_ERROR(Poll(during).status());
  if (pending_.empty()) return absl::OkStatus();
  if (!front_began_) {
    SHALE_ASSIGN_OR_RETURN(front_began_, runtime_->EventReached(pending_.front().begin.get()));
    front_deadline_ = Deadline(options_.timeout_seconds);
    return absl::OkStatus();
  }
  return front_deadline_.Passed() ? Waited(during) : absl::OkStatus();
}

bool NcclRank::Idle() {
  std::lock_guard lock(mutex_);
  return Reap().ok() && pending_.empty() && !launching_;
}

void NcclRank::Destroy() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  runtime_->SetDevice(options_.ordinal).IgnoreError();
  // Ignores an error, because the memory belongs to NCCL and nothing can be done about it.
  (void)nccl_->CommDestroy(std::exchange(comm_, nullptr));
}

void NcclRank::Abort() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  (void)nccl_->CommAbort(std::exchange(comm_, nullptr));
}

}  // namespace shale
