// Plays the profiler: the first use of NVTX looks for a profiler, and finds the function Inject in this program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/run/runtime/profiler_ranges.h"

#ifdef SHALE_HAVE_NVTX
#include "nvtx3/nvToolsExt.h"
#endif

namespace shale {
namespace {

TEST(NvtxRanges, AProfilerAsksByItsVariable) {
  ASSERT_EQ(unsetenv("NVTX_INJECTION64_PATH"), 0);
  EXPECT_FALSE(ProfilerWantsNvtxRanges());
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", "", 1), 0);
  EXPECT_FALSE(ProfilerWantsNvtxRanges());
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", "/opt/profiler.so", 1), 0);
  EXPECT_TRUE(ProfilerWantsNvtxRanges());
  ASSERT_EQ(unsetenv("NVTX_INJECTION64_PATH"), 0);
}

#ifdef SHALE_HAVE_NVTX

// What NVTX calls. Domains and names are strings that live until the program ends.
std::vector<std::string>& Calls() {
  static std::vector<std::string> calls;
  return calls;
}
std::string& Text(const void* handle) { return *static_cast<std::string*>(const_cast<void*>(handle)); }

nvtxDomainHandle_t NVTX_API CreateDomain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new std::string(name));
}
void NVTX_API DestroyDomain(nvtxDomainHandle_t domain) {
  Calls().push_back(absl::StrCat("destroy ", Text(domain)));
  delete &Text(domain);
}
nvtxStringHandle_t NVTX_API RegisterString(nvtxDomainHandle_t domain, const char* text) {
  static std::vector<std::unique_ptr<std::string>> texts;
  texts.push_back(std::make_unique<std::string>(absl::StrCat(Text(domain), "/", text)));
  return reinterpret_cast<nvtxStringHandle_t>(texts.back().get());
}
int NVTX_API PushRange(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  EXPECT_EQ(event->messageType, NVTX_MESSAGE_TYPE_REGISTERED);
  EXPECT_EQ(event->payloadType, NVTX_PAYLOAD_TYPE_INT64);
  Calls().push_back(absl::StrCat(Text(domain), ": ", Text(event->message.registered), " ", event->payload.llValue));
  return 0;
}
int NVTX_API PopRange(nvtxDomainHandle_t domain) {
  Calls().push_back(absl::StrCat(Text(domain), ": end"));
  return 0;
}

int NVTX_API Inject(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  const auto set = [&](int id, auto* function) { *table[id] = reinterpret_cast<NvtxFunctionPointer>(function); };
  set(NVTX_CBID_CORE2_DomainCreateA, &CreateDomain);
  set(NVTX_CBID_CORE2_DomainDestroy, &DestroyDomain);
  set(NVTX_CBID_CORE2_DomainRegisterStringA, &RegisterString);
  set(NVTX_CBID_CORE2_DomainRangePushEx, &PushRange);
  set(NVTX_CBID_CORE2_DomainRangePop, &PopRange);
  return 1;
}

TEST(NvtxRanges, ReachTheProfiler) {
  InitializeInjectionNvtx2_fnptr = &Inject;
  absl::StatusOr<std::unique_ptr<ProfilerRanges>> ranges = CreateNvtxRanges();
  ASSERT_TRUE(ranges.ok()) << ranges.status();
  ProfilerRanges& profiler = **ranges;
  const int steps = profiler.Lane("shale"), compute = profiler.Lane("shale compute");
  EXPECT_NE(steps, compute);
  EXPECT_EQ(profiler.Lane("shale"), steps);
  const ProfilerRanges::Name step = profiler.Register(steps, "step");
  const ProfilerRanges::Name matmul = profiler.Register(compute, "MatMul");
  profiler.Push(steps, step, 7);
  profiler.Push(compute, matmul, 12);
  profiler.Pop(compute);
  profiler.Pop(steps);
  ranges->reset();
  EXPECT_THAT(Calls(),
              ::testing::ElementsAre("shale: shale/step 7", "shale compute: shale compute/MatMul 12",
                                     "shale compute: end", "shale: end", "destroy shale", "destroy shale compute"));
}
#else
TEST(NvtxRanges, WithoutTheirHeadersTheMessageSaysWhatToDo) {
  EXPECT_THAT(CreateNvtxRanges().status().message(), ::testing::HasSubstr("Leave nvtx out, or build again there"));
}
#endif

}  // namespace
}  // namespace shale
