#include "tests/kernels/op_conformance.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/op.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/op_rig.h"
#include "tests/sanitizers.h"

namespace shale::testing {
namespace {

// Returns whether `got` is as near to `want` as `tolerance` demands.
bool Near(double got, double want, DType dtype, const Tolerance& tolerance) {
  if (std::isnan(want)) return std::isnan(got);
  if (got == want) return true;
  double allowed = tolerance.absolute + tolerance.relative * std::abs(want);
  if (allowed > 0 && SizeOf(dtype) == 2) {
    allowed +=
        2 * UnitOf(dtype) * std::max(std::abs(want), std::abs(got)) + (dtype == DType::kFloat16 ? kLeastHalf : 0);
  }
  return std::abs(got - want) <= allowed;
}

// Expects that the written operands of the two images agree.
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

// Returns the image with the bytes of every written element set to zero. The remaining bytes must not change.
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

// Returns `op` with an output in the place of an input, or nothing if there is no room for it.
std::optional<Op> InPlace(Op op, const std::string& output, const std::string& input) {
  Tensor at;
  VisitOperands(std::as_const(op), [&](absl::string_view name, const Tensor& t, Access) {
    if (name == input) at = t;
  });
  bool fits = true;
  VisitOperands(op, [&](absl::string_view name, Tensor& t, Access) {
    if (name != output) return;
    t.where = at.where;
    fits = t.extent_bytes() <= at.extent_bytes();
  });
  return fits ? std::optional<Op>(std::move(op)) : std::nullopt;
}

// Returns the bits of the elements of all outputs. As bits, a NaN equals itself.
std::vector<uint64_t> OutputsOf(const Op& op, const TestMemory& memory, std::vector<std::byte>& image) {
  std::vector<uint64_t> elements;
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access access) {
    if (access == Access::kRead || !t.present()) return;
    const Tensor bound = memory.Bind(t, image.data());
    for (int64_t i = 0; i < t.elements(); ++i) elements.push_back(std::bit_cast<uint64_t>(ElementOf(bound, i)));
  });
  return elements;
}

// Returns how often an op runs on a backend. Backends of one family are compared with each other, and the one of the
// reference with the function that it calls. Each other one must repeat itself, so an op runs twice there. It runs once
// under a sanitizer, and in the second order of threads (second_order.h), which is there for the checks of each access:
// op_test shows that CUDA kernels repeat themselves.
int RunsOn(const OpRig& rig) {
  if (std::getenv("SHALE_SECOND_ORDER") != nullptr) return 1;
  int alike = 0;
  for (const auto& other : OpRigs()) alike += other->family() == rig.family();
  return alike > 1 || rig.family() == "reference" || HasSanitizer() ? 1 : 2;
}

TEST_P(OpConformance, MatchesTheReferenceToTheSameBitsEachTimeAndTouchesOnlyItsOutputs) {
  const OpCase& c = GetParam();
  std::vector<std::byte> want = RunOnReference(c.memory, c.op);
  const std::vector<std::byte> untouched = WithoutOutputs(c, c.memory.image());
  EXPECT_TRUE(WithoutOutputs(c, want) == untouched) << "the reference changed bytes that are no output's";
  std::map<std::string, std::vector<std::byte>> first_of_family = {{"reference", want}};
  for (const auto& rig : OpRigs()) {
    SCOPED_TRACE(rig->name());
    for (int run = 0; run < RunsOn(*rig); ++run) {
      std::vector<std::byte> got;
      const absl::Status status = rig->Run(c.memory, c.op, got);
      ASSERT_TRUE(status.ok()) << status;
      const auto [first, is_first] = first_of_family.emplace(rig->family(), got);
      EXPECT_TRUE(is_first || got == first->second) << "run " << run << " gave other bits than its family's first";
      if (!is_first) continue;
      ExpectOutputsNear(c, got, want);
      EXPECT_TRUE(WithoutOutputs(c, got) == untouched) << "bytes changed that are no output's";
    }
  }
}

// An output that may lie in the place of an input gets the same bits there.
TEST_P(OpConformance, GivesTheSameBitsInPlace) {
  const OpCase& c = GetParam();
  std::vector<std::string> outputs, inputs;
  VisitOperands(c.op, [&](absl::string_view name, const Tensor& t, Access access) {
    if (!t.present() || access == Access::kReadWrite) return;
    (access == Access::kWrite ? outputs : inputs).emplace_back(name.data(), name.size());
  });
  std::vector<std::pair<std::string, Op>> in_place;
  for (const std::string& output : outputs) {
    for (const std::string& input : inputs) {
      const std::optional<Op> op = InPlace(c.op, output, input);
      if (op.has_value() && Validate(*op).ok()) in_place.emplace_back(output + " in place of " + input, *op);
    }
  }
  if (in_place.empty()) return;
  for (const auto& rig : OpRigs()) {
    SCOPED_TRACE(rig->name());
    std::vector<std::byte> apart;
    ASSERT_TRUE(rig->Run(c.memory, c.op, apart).ok());
    const std::vector<uint64_t> want = OutputsOf(c.op, c.memory, apart);
    for (const auto& [what, op] : in_place) {
      SCOPED_TRACE(what);
      std::vector<std::byte> got;
      const absl::Status status = rig->Run(c.memory, op, got);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(want == OutputsOf(op, c.memory, got)) << "other bits";
    }
  }
}

}  // namespace

// A test file may come without a table of cases.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpConformance);

void PrintTo(const OpCase& op_case, std::ostream* out) { *out << op_case.name; }

std::string NameOf(DType dtype) { return std::string(ToString(dtype).data(), ToString(dtype).size()); }

std::vector<std::byte> RunOnBackend(const std::string& backend, const TestMemory& memory, const Op& op) {
  for (const auto& rig : OpRigs()) {
    if (rig->name() != backend) continue;
    std::vector<std::byte> image;
    const absl::Status status = rig->Run(memory, op, image);
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
