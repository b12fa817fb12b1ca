#include "tests/kernels/run_errors.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {

void ExpectRunFails(const TestMemory& memory, const Op& op, const std::vector<std::string>& parts) {
  for (const TestBackend& backend : TestBackends()) {
    if (!backend.reports_bad_indices) continue;
    SCOPED_TRACE(backend.name);
    if (backend.select) backend.select();
    // A failed stream stays failed, so this run has its own.
    const auto device = backend.create_device();
    const auto ops = backend.create_ops();
    auto stream = device->CreateStream("compute");
    ASSERT_TRUE(stream.ok()) << stream.status();
    const AlignedBytes image(memory.image());
    std::vector<std::byte> scratch(ops->ScratchBytes(op) + 256);
    auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch.data()) + 255) / 256 * 256);
    const Op bound = memory.Bind(op, image.data());
    ASSERT_TRUE(Validate(bound).ok()) << Validate(bound);

    absl::Status status = ops->Launch(bound, {aligned, ops->ScratchBytes(op)}, **stream);
    if (status.ok()) status = (*stream)->Synchronize();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    const std::string message(status.message().data(), status.message().size());
    const absl::string_view name = NameOf(op);
    EXPECT_NE(message.find(std::string(name.data(), name.size()) + ": "), std::string::npos) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
    }
    EXPECT_EQ(std::memcmp(image.data(), memory.image().data(), memory.image().size()), 0) << "bytes changed";
  }
}

}  // namespace shale::testing
