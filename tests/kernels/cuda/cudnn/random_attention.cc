#include "tests/kernels/cuda/cudnn/random_attention.h"

#include <vector>

#include "tests/kernels/op_conformance.h"

namespace shale::testing {

AttentionBackward RandomAttention(TestMemory& memory, const AttentionShape& shape) {
  const auto random_in = [](TestMemory& in) {
    return [&in](int64_t rows, int64_t columns) { return in.Random(DType::kBFloat16, {rows, columns}); };
  };
  TestMemory before;
  const AttentionForward forward =
      ForwardOf(PackedAttention(shape, random_in(before), [&](int64_t b, int64_t h, int64_t s) {
        return before.Output(DType::kFloat32, {b, h, s});
      }));
  std::vector<std::byte> image = RunOnReference(before, forward);
  const Tensor found = before.Bind(forward.lse_BHS, image.data());
  std::vector<double> lse(found.elements());
  for (int64_t i = 0; i < found.elements(); ++i) lse[i] = ElementOf(found, i);
  // Makes the same numbers again, from the same seed.
  return PackedAttention(shape, random_in(memory), [&](int64_t b, int64_t h, int64_t s) {
    return memory.Values(DType::kFloat32, {b, h, s}, lse);
  });
}

}  // namespace shale::testing
