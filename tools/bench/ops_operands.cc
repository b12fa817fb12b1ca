// Fills the operands of a case with values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "kernels/float8.h"
#include "kernels/op.h"
#include "kernels/ops/attention.h"
#include "kernels/step_scalars.h"
#include "tools/bench/ops_cases.h"

namespace shale {
namespace {

// Returns numbers between -1 and 1, the same in every call.
const std::vector<float>& Numbers() {
  static const std::vector<float>& numbers = *new std::vector<float>([] {
    std::vector<float> made(65536 - 37);  // Not a power of two, so that no two rows are alike.
    uint32_t state = 1;
    for (float& x : made) x = static_cast<float>(static_cast<int32_t>(state = state * 1664525 + 1013904223)) * 0x1p-31f;
    return made;
  }());
  return numbers;
}

template <class T, class Make>
void Fill(const Tensor& t, const Make& make) {
  const std::vector<float>& numbers = Numbers();
  const int64_t count = t.extent();
  std::vector<T> made(std::min<size_t>(numbers.size(), static_cast<size_t>(count)));
  for (size_t i = 0; i < made.size(); ++i) made[i] = make(numbers[i]);
  for (int64_t begin = 0; begin < count; begin += std::ssize(made)) {
    std::memcpy(t.as<T>() + begin, made.data(),
                static_cast<size_t>(std::min<int64_t>(std::ssize(made), count - begin)) * sizeof(T));
  }
}

// Returns the value of an element of an operand, made of a number between -1 and 1.
float ValueOf(absl::string_view name, float x) {
  // These are positive. lse is about as large as the log-sum-exp of a row of scores.
  if (name == "v" || name == "m_scale" || name == "v_scale" || name == "rstd") return std::abs(x) + 0.5f;
  if (name == "lse") return std::abs(x) + 4;
  // A norm that works in place multiplies by its weights in every call, which must not end in subnormal numbers.
  if (name == "weight") return std::copysign(1.0f, x);
  return x;
}

void FillOperand(absl::string_view name, const Tensor& t, int64_t vocabulary) {
  switch (t.dtype) {
    case DType::kInt32:
      return Fill<int32_t>(t, [&](float x) {
        return std::min<int32_t>(static_cast<int32_t>(std::abs(x) * static_cast<float>(vocabulary)),
                                 static_cast<int32_t>(vocabulary) - 1);
      });
    case DType::kInt16: return Fill<int16_t>(t, [](float x) { return static_cast<int16_t>(x * 32767); });
    case DType::kBFloat16: return Fill<BFloat16>(t, [&](float x) { return RoundToBFloat16(ValueOf(name, x)); });
    case DType::kUInt8: return Fill<uint8_t>(t, [](float x) { return static_cast<uint8_t>(127 + x * 127); });
    case DType::kFloat8E4M3: return Fill<Float8E4M3>(t, [](float x) { return SaturateToFloat8E4M3(x); });
    case DType::kFloat8E5M2: return Fill<Float8E5M2>(t, [](float x) { return SaturateToFloat8E5M2(x); });
    case DType::kFloat32: break;
    default: std::memset(t.data, 0, static_cast<size_t>(t.extent_bytes())); return;
  }
  if (name == "update") {
    const float update[kUpdateSize] = {1e-4f, 0.1f, 0.05f, 0.5f, 0};
    std::memcpy(t.data, update, sizeof(update));
  } else if (name == "scale" || name == "scale_a" || name == "scale_b" || name == "maximum") {
    *t.as<float>() = 1;
  } else {
    Fill<float>(t, [&](float x) { return ValueOf(name, x); });
  }
}

}  // namespace

void FillOperands(const OpCase& test_case, const Op& bound) {
  VisitOperands(bound, [&](absl::string_view name, const Tensor& t, Access) {
    if (t.present()) FillOperand(name, t, test_case.vocabulary);
  });
  if (const auto* cached = bound.As<CachedAttention>()) {
    // The new tokens are the last that the cache has room for.
    const int64_t begin = cached->keys_CGPD.dim(2) - cached->q_BSHD.dim(1);
    std::fill_n(cached->begins_B.as<int32_t>(), cached->begins_B.elements(), static_cast<int32_t>(begin));
  }
}

}  // namespace shale
