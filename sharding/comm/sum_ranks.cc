#include "sharding/comm/sum_ranks.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

namespace shale {
namespace {

// Sums block by block in a buffer that stays in the first-level cache and aliases nothing. So the compiler vectorizes
// the inner loop, and memory is read and written once. 16-byte vectors suffice, because memory bounds the loop and not
// the additions.
template <class T>
void Sum(absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements) {
  constexpr int64_t kBlock = 4096 / sizeof(T);
  T sum[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    std::memcpy(sum, inputs[0] + begin * sizeof(T), count * sizeof(T));
    for (size_t r = 1; r < inputs.size(); ++r) {
      const T* x = reinterpret_cast<const T*>(inputs[r]) + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] += x[i];
    }
    std::memcpy(out + begin * sizeof(T), sum, count * sizeof(T));
  }
}

}  // namespace

void SumRanks(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements) {
  switch (dtype) {
    case DType::kFloat32: return Sum<float>(inputs, out, elements);
    case DType::kFloat64: return Sum<double>(inputs, out, elements);
    case DType::kInt64: return Sum<uint64_t>(inputs, out, elements);  // Signed overflow would be undefined.
    default: SHALE_CHECK(false) << "sum of " << ToString(dtype);
  }
}

}  // namespace shale
