#include "tests/kernels/op_conformance.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/reference/reference_ops.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

// What an op runs on; one per backend for the whole test program, as for a rank.
struct Rig {
  explicit Rig(const TestBackend& backend)
      : name(backend.name),
        family(backend.family),
        select(backend.select),
        device(backend.create_device()),
        ops(backend.create_ops()) {
    stream = *device->CreateStream("compute");
  }
  std::string name, family;
  std::function<void()> select;
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;
};

const std::vector<std::unique_ptr<Rig>>& Rigs() {
  static const auto& rigs = *[] {
    auto* all = new std::vector<std::unique_ptr<Rig>>;
    for (const TestBackend& backend : TestBackends()) all->push_back(std::make_unique<Rig>(backend));
    return all;
  }();
  return rigs;
}

constexpr std::byte kScratchGuard{0x5A};

// Everything lies in one arena: the case's image, then scratch between red zones of its own.
absl::Status RunOnRig(Rig& rig, const TestMemory& memory, const Op& symbolic, std::vector<std::byte>& image) {
  if (rig.select) rig.select();
  const int64_t scratch_bytes = rig.ops->ScratchBytes(symbolic);
  const int64_t scratch_begin = static_cast<int64_t>(memory.image().size() + kRedZoneBytes + 255) / 256 * 256;
  const int64_t total = scratch_begin + scratch_bytes + kRedZoneBytes;
  std::vector<std::byte> bytes(total, kScratchGuard);
  std::memcpy(bytes.data(), memory.image().data(), memory.image().size());
  std::memset(bytes.data() + scratch_begin, 0xFF, scratch_bytes);  // NaNs: scratch is dirty.

  SHALE_ASSIGN_OR_RETURN(auto arena, rig.device->Allocate(total));
  SHALE_RETURN_IF_ERROR(rig.stream->Copy(arena->base(), bytes.data(), total));
  const Op op = memory.Bind(symbolic, arena->base());
  SHALE_RETURN_IF_ERROR(Validate(op));
  if (rig.ops->ScratchBytes(op) != scratch_bytes) return absl::InternalError("scratch depends on addresses");
  SHALE_RETURN_IF_ERROR(rig.ops->Prepare(op));
  SHALE_RETURN_IF_ERROR(rig.ops->Launch(op, {arena->base() + scratch_begin, scratch_bytes}, *rig.stream));
  SHALE_RETURN_IF_ERROR(rig.stream->Copy(bytes.data(), arena->base(), total));
  SHALE_RETURN_IF_ERROR(rig.stream->Synchronize());
  for (int64_t i = memory.image().size(); i < total; ++i) {
    if ((i < scratch_begin || i >= scratch_begin + scratch_bytes) && bytes[i] != kScratchGuard) {
      return absl::InternalError("the red zone around scratch was written");
    }
  }
  bytes.resize(memory.image().size());
  image = std::move(bytes);
  return absl::OkStatus();
}

// Whether `got` is as near to `want` as asked.
bool Near(double got, double want, DType dtype, const Tolerance& tolerance) {
  if (std::isnan(want)) return std::isnan(got);
  if (got == want) return true;
  double allowed = tolerance.absolute + tolerance.relative * std::abs(want);
  if (dtype == DType::kBFloat16 && allowed > 0) allowed += 2 * kUnit16 * std::max(std::abs(want), std::abs(got));
  return std::abs(got - want) <= allowed;
}

// Compares the written operands of two images.
void ExpectOutputsNear(const OpCase& c, std::vector<std::byte>& got, std::vector<std::byte>& want) {
  VisitOperands(c.op, [&](absl::string_view name_view, const Tensor& t, Access access) {
    if (access == Access::kRead || !t.present()) return;
    const std::string name(name_view.data(), name_view.size());
    const auto found = c.tolerances.find(name);
    const Tolerance tolerance = found == c.tolerances.end() ? Tolerance() : found->second;
    if (tolerance.ignored) return;
    const Tensor g = c.memory.Bind(t, got.data());
    const Tensor w = c.memory.Bind(t, want.data());
    int failures = 0;
    for (int64_t i = 0; i < t.elements() && failures < 5; ++i) {
      if (Near(ElementOf(g, i), ElementOf(w, i), t.dtype, tolerance)) continue;
      ADD_FAILURE() << name << "[" << i << "] of " << t.ToString() << " is " << ElementOf(g, i) << ", wanted "
                    << ElementOf(w, i) << " +- " << tolerance.absolute << " + " << tolerance.relative
                    << " |wanted|; off by " << ElementOf(g, i) - ElementOf(w, i);
      ++failures;
    }
  });
}

// The image with the bytes of every written element set to zero: what must be as before.
std::vector<std::byte> WithoutOutputs(const OpCase& c, std::vector<std::byte> image) {
  VisitOperands(c.op, [&](absl::string_view, const Tensor& t, Access access) {
    if (access == Access::kRead || !t.present()) return;
    const Tensor bound = c.memory.Bind(t, image.data());
    const int64_t size = SizeOf(t.dtype);
    for (int64_t i = 0; i < t.elements(); ++i) {
      std::memset(bound.as<std::byte>() + OffsetOf(bound, i) * size, 0, static_cast<size_t>(size));
    }
  });
  return image;
}

// `op` with an output at the place of an input.
Op InPlace(Op op, const std::string& output, const std::string& input) {
  Tensor at;
  VisitOperands(std::as_const(op), [&](absl::string_view name, const Tensor& t, Access) {
    if (name == input) at = t;
  });
  VisitOperands(op, [&](absl::string_view name, Tensor& t, Access) {
    if (name == output) t.where = at.where;
  });
  return op;
}

// The elements of all outputs.
std::vector<uint64_t> OutputsOf(const Op& op, const TestMemory& memory, std::vector<std::byte>& image) {
  std::vector<uint64_t> elements;  // Bits: a NaN equals itself.
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access access) {
    if (access == Access::kRead || !t.present()) return;
    const Tensor bound = memory.Bind(t, image.data());
    for (int64_t i = 0; i < t.elements(); ++i) elements.push_back(std::bit_cast<uint64_t>(ElementOf(bound, i)));
  });
  return elements;
}

TEST_P(OpConformance, MatchesTheReferenceAndTouchesOnlyItsOutputs) {
  const OpCase& c = GetParam();
  std::vector<std::byte> want = RunOnReference(c.memory, c.op);
  const std::vector<std::byte> untouched = WithoutOutputs(c, c.memory.image());
  for (const auto& rig : Rigs()) {
    SCOPED_TRACE(rig->name);
    std::vector<std::byte> got;
    const absl::Status status = RunOnRig(*rig, c.memory, c.op, got);
    ASSERT_TRUE(status.ok()) << status;
    ExpectOutputsNear(c, got, want);
    EXPECT_TRUE(WithoutOutputs(c, got) == untouched) << "bytes changed that are no output's";
  }
}

TEST_P(OpConformance, RepeatsItselfToTheBitOnAnyNumberOfThreads) {
  const OpCase& c = GetParam();
  std::map<std::string, std::vector<std::byte>> first_of_family;
  for (const auto& rig : Rigs()) {
    SCOPED_TRACE(rig->name);
    for (int run = 0; run < 2; ++run) {
      std::vector<std::byte> got;
      const absl::Status status = RunOnRig(*rig, c.memory, c.op, got);
      ASSERT_TRUE(status.ok()) << status;
      const auto [first, is_first] = first_of_family.emplace(rig->family, got);
      EXPECT_TRUE(is_first || got == first->second) << "run " << run << " gave other bits";
    }
  }
}

// Every output that may lie where an input lies gets the same bits there.
TEST_P(OpConformance, GivesTheSameBitsInPlace) {
  const OpCase& c = GetParam();
  std::vector<std::string> outputs, inputs;
  VisitOperands(c.op, [&](absl::string_view name, const Tensor& t, Access access) {
    if (!t.present() || access == Access::kReadWrite) return;
    (access == Access::kWrite ? outputs : inputs).emplace_back(name.data(), name.size());
  });
  for (const std::string& output : outputs) {
    for (const std::string& input : inputs) {
      const Op op = InPlace(c.op, output, input);
      if (!Validate(op).ok()) continue;
      SCOPED_TRACE(output + " in place of " + input);
      for (const auto& rig : Rigs()) {
        SCOPED_TRACE(rig->name);
        std::vector<std::byte> apart, in_place;
        ASSERT_TRUE(RunOnRig(*rig, c.memory, c.op, apart).ok());
        const absl::Status status = RunOnRig(*rig, c.memory, op, in_place);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(OutputsOf(c.op, c.memory, apart) == OutputsOf(op, c.memory, in_place)) << "other bits";
      }
    }
  }
}

}  // namespace

// A test file may come without a table of cases.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpConformance);

void PrintTo(const OpCase& op_case, std::ostream* out) { *out << op_case.name; }

std::string NameOf(DType dtype) { return std::string(ToString(dtype).data(), ToString(dtype).size()); }

std::vector<std::byte> RunOnBackend(const std::string& backend, const TestMemory& memory, const Op& op) {
  for (const auto& rig : Rigs()) {
    if (rig->name != backend) continue;
    std::vector<std::byte> image;
    const absl::Status status = RunOnRig(*rig, memory, op, image);
    EXPECT_TRUE(status.ok()) << backend << ": " << status;
    return image;
  }
  ADD_FAILURE() << "no backend " << backend;
  return {};
}

std::vector<std::byte> RunOnReference(const TestMemory& memory, const Op& op) {
  const AlignedBytes bytes(memory.image());
  const absl::Status status = RunReference(memory.Bind(op, bytes.data()));
  EXPECT_TRUE(status.ok()) << status;
  return std::vector<std::byte>(bytes.data(), bytes.data() + memory.image().size());
}

void ExpectRefused(const Op& op, const std::vector<std::string>& parts) {
  const absl::Status status = Validate(op);
  ASSERT_FALSE(status.ok()) << shale::NameOf(op) << " was accepted";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message().data(), status.message().size());
  EXPECT_NE(message.find(std::string(shale::NameOf(op).data(), shale::NameOf(op).size()) + ": "), std::string::npos)
      << message;
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
  }
}

}  // namespace shale::testing
