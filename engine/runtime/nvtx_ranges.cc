#include "engine/runtime/nvtx_ranges.h"

#include <cstdlib>

#include "absl/status/status.h"

#ifdef SHALE_HAVE_NVTX
#include <deque>
#include <mutex>

#include "nvtx3/nvToolsExt.h"
#endif

namespace shale {

bool ProfilerWantsNvtxRanges() {
  const char* const library = std::getenv("NVTX_INJECTION64_PATH");
  return library != nullptr && library[0] != '\0';
}

#ifdef SHALE_HAVE_NVTX
namespace {

class NvtxRanges : public ProfilerRanges {
 public:
  ~NvtxRanges() override {
    for (const Domain& domain : domains_) nvtxDomainDestroy(domain.handle);
  }

  int Lane(const std::string& name) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t lane = 0; lane < domains_.size(); ++lane) {
      if (domains_[lane].name == name) return static_cast<int>(lane);
    }
    domains_.push_back({name, nvtxDomainCreateA(name.c_str())});
    return static_cast<int>(domains_.size()) - 1;
  }

  Name Register(int lane, const std::string& name) override {
    return nvtxDomainRegisterStringA(HandleOf(lane), name.c_str());
  }

  void Push(int lane, Name name, int64_t number) override {
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = static_cast<nvtxStringHandle_t>(const_cast<void*>(name));
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    event.payload.llValue = number;
    nvtxDomainRangePushEx(HandleOf(lane), &event);
  }

  void Pop(int lane) override { nvtxDomainRangePop(HandleOf(lane)); }

 private:
  struct Domain {
    std::string name;
    nvtxDomainHandle_t handle;
  };

  nvtxDomainHandle_t HandleOf(int lane) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return domains_[lane].handle;
  }

  std::mutex mutex_;
  std::deque<Domain> domains_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProfilerRanges>> CreateNvtxRanges() { return std::make_unique<NvtxRanges>(); }
#else
absl::StatusOr<std::unique_ptr<ProfilerRanges>> CreateNvtxRanges() {
  return absl::UnimplementedError(
      "telemetry.nvtx wants a program that was built where a CUDA toolkit is installed, which has the headers of NVTX; "
      "this one was not. Leave nvtx out, or build again there");
}
#endif

}  // namespace shale
