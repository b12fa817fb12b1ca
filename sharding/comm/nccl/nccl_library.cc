#include "sharding/comm/nccl/nccl_library.h"

#include <nccl.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/nccl/nccl_environment.h"

namespace shale {
namespace {

// The first version with NCCL_LAUNCH_ORDER_IMPLICIT.
constexpr int kOldest = NCCL_VERSION(2, 26, 0), kMajor = 2;

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(int(NcclResult::kInProgress) == ncclInProgress && int(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(int(NcclResult::kInvalidUsage) == ncclInvalidUsage && int(NcclResult::kSuccess) == ncclSuccess);
static_assert(int(NcclType::kBytes) == ncclInt8 && int(NcclType::kInt64) == ncclInt64);
static_assert(int(NcclType::kFloat32) == ncclFloat32 && int(NcclType::kFloat64) == ncclFloat64);

struct Functions {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclMemAlloc) mem_alloc;
  decltype(&ncclMemFree) mem_free;
  // Null before 2.27, which has no windows.
  decltype(&ncclCommWindowRegister) window_register;
  decltype(&ncclCommWindowDeregister) window_deregister;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
};

// Does not check the value, because a result of a future version of NCCL may be passed on too.
NcclResult From(ncclResult_t result) { return static_cast<NcclResult>(result); }
ncclDataType_t To(NcclType type) { return static_cast<ncclDataType_t>(type); }
ncclComm_t To(NcclComm comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t Stream(cuda::StreamHandle stream) { return static_cast<cudaStream_t>(stream); }

class LoadedNccl final : public NcclApi {
 public:
  LoadedNccl(const Functions& functions, int version) : nccl_(functions), version_(version) {}

  int Version() const override { return version_; }
  NcclResult GetUniqueId(NcclUniqueId& id) override {
    ncclUniqueId made = {};
    const ncclResult_t result = nccl_.get_unique_id(&made);
    std::memcpy(id.bytes.data(), made.internal, id.bytes.size());
    return From(result);
  }
  NcclResult CommInitRank(NcclComm& comm, int size, const NcclUniqueId& id, int rank) override {
    ncclUniqueId given;
    std::memcpy(given.internal, id.bytes.data(), id.bytes.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0;
    // A thread of NCCL writes to *place again when it is done, so the place must outlive this call and an abort.
    ncclComm_t* place = nullptr;
    {
      std::lock_guard lock(mutex_);
      place = &places_.emplace_back(nullptr);
    }
    const ncclResult_t result = nccl_.init_rank(place, size, given, rank, &config);
    comm = std::atomic_ref<ncclComm_t>(*place).load(std::memory_order_acquire);
    return From(result);
  }
  NcclResult CommGetAsyncError(NcclComm comm, NcclResult& state) override {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t result = nccl_.get_async_error(To(comm), &found);
    state = From(found);
    return From(result);
  }
  NcclResult CommDestroy(NcclComm comm) override { return From(nccl_.destroy(To(comm))); }
  NcclResult CommAbort(NcclComm comm) override { return From(nccl_.abort(To(comm))); }

  NcclResult AllGather(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                       cuda::StreamHandle stream) override {
    return From(nccl_.all_gather(send, receive, count, To(type), To(comm), Stream(stream)));
  }
  NcclResult ReduceScatterSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                              cuda::StreamHandle stream) override {
    return From(nccl_.reduce_scatter(send, receive, count, To(type), ncclSum, To(comm), Stream(stream)));
  }
  NcclResult AllReduceSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                          cuda::StreamHandle stream) override {
    return From(nccl_.all_reduce(send, receive, count, To(type), ncclSum, To(comm), Stream(stream)));
  }

  NcclResult AllToAll(absl::Span<const NcclPiece> sent, absl::Span<const NcclPiece> received, NcclComm comm,
                      cuda::StreamHandle stream) override {
    ncclResult_t result = nccl_.group_start();
    if (result != ncclSuccess) return From(result);
    const auto also = [&](ncclResult_t next) {
      if (result == ncclSuccess && next != ncclInProgress) result = next;
    };
    for (int peer = 0; peer < static_cast<int>(sent.size()); ++peer) {
      const NcclPiece &out = sent[peer], &in = received[peer];
      if (out.bytes > 0) also(nccl_.send(out.data, out.bytes, ncclInt8, peer, To(comm), Stream(stream)));
      if (in.bytes > 0) also(nccl_.recv(in.data, in.bytes, ncclInt8, peer, To(comm), Stream(stream)));
    }
    const ncclResult_t ended = nccl_.group_end();
    return From(result == ncclSuccess ? ended : result);
  }

  NcclResult MemAlloc(void*& memory, int64_t size_bytes) override {
    return From(nccl_.mem_alloc(&memory, static_cast<size_t>(size_bytes)));
  }
  NcclResult MemFree(void* memory) override { return From(nccl_.mem_free(memory)); }
  bool has_windows() const override { return nccl_.window_register != nullptr && nccl_.window_deregister != nullptr; }
  NcclResult CommWindowRegister(NcclComm comm, void* memory, int64_t size_bytes, NcclWindow& window) override {
    // NCCL writes the handle when the call is done, which may be after it has returned.
    static_assert(sizeof(NcclWindow) == sizeof(ncclWindow_t));
    return From(nccl_.window_register(To(comm), memory, static_cast<size_t>(size_bytes),
                                      reinterpret_cast<ncclWindow_t*>(&window), NCCL_WIN_COLL_SYMMETRIC));
  }
  NcclResult CommWindowDeregister(NcclComm comm, NcclWindow window) override {
    return From(nccl_.window_deregister(To(comm), static_cast<ncclWindow_t>(window)));
  }

  std::string ErrorString(NcclResult result) override { return nccl_.error_string(static_cast<ncclResult_t>(result)); }
  std::string LastError() override {
    const char* text = nccl_.last_error(nullptr);
    return text == nullptr ? "" : text;
  }

 private:
  const Functions nccl_;
  const int version_;
  std::mutex mutex_;
  std::deque<ncclComm_t> places_;  // One for every communicator ever made. Guarded by mutex_.
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclApi>> LoadNccl(const LibrarySearch& search) {
  SetNcclEnvironment();
  const LibraryName name = {.title = "NCCL",
                            .file = "libnccl.so.2",
                            .source = "NCCL 2.26 or newer for CUDA 13, or the Python package nvidia-nccl-cu13"};
  SHALE_ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(name, search));
  Functions functions = {};
  SHALE_RETURN_IF_ERROR(library.Bind("ncclGetVersion", functions.get_version));
  int version = 0;
  if (functions.get_version(&version) != ncclSuccess || version < kOldest || version / 10000 != kMajor) {
    return absl::FailedPreconditionError(absl::StrCat("wanted NCCL ", NcclVersionText(kOldest),
                                                      " or newer, below 3, found ", NcclVersionText(version), " in ",
                                                      library.path(), "; install ", name.source));
  }
  SHALE_RETURN_IF_ERROR(library.Bind("ncclGetUniqueId", functions.get_unique_id));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclCommInitRankConfig", functions.init_rank));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclCommGetAsyncError", functions.get_async_error));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclCommDestroy", functions.destroy));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclCommAbort", functions.abort));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclAllGather", functions.all_gather));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclReduceScatter", functions.reduce_scatter));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclAllReduce", functions.all_reduce));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclSend", functions.send));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclRecv", functions.recv));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclGroupStart", functions.group_start));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclGroupEnd", functions.group_end));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclMemAlloc", functions.mem_alloc));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclMemFree", functions.mem_free));
  // Windows are optional.
  library.Bind("ncclCommWindowRegister", functions.window_register).IgnoreError();
  library.Bind("ncclCommWindowDeregister", functions.window_deregister).IgnoreError();
  SHALE_RETURN_IF_ERROR(library.Bind("ncclGetErrorString", functions.error_string));
  SHALE_RETURN_IF_ERROR(library.Bind("ncclGetLastError", functions.last_error));
  return std::make_unique<LoadedNccl>(functions, version);
}

}  // namespace shale
