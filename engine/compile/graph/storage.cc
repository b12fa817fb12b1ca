#include "engine/compile/graph/storage.h"

#include "kernels/nf4.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/quantized.h"

namespace shale {
namespace {

int64_t OneEach(int64_t weights) { return weights; }

Op WidenCopy(const Tensor& stored, const Tensor& used, int64_t) { return Copy{.from = stored, .to = used}; }

Op WidenNf4(const Tensor& stored, const Tensor& used, int64_t shards) {
  return Nf4Dequantize{.stored_RP = stored.Reshape({shards, stored.elements() / shards}),
                       .out_RN = used.Reshape({shards, used.elements() / shards})};
}

// By Storage.
constexpr StorageRow kRows[kStorages] = {
    {.name = "AS_COMPUTED", .dtype = [](DType used) { return used; }, .elements = OneEach},
    {.name = "BF16",
     .text = "in bf16",
     .dtype = [](DType) { return DType::kBFloat16; },
     .elements = OneEach,
     .widens_to = [](DType used) { return used == DType::kFloat32; },
     .widen = WidenCopy},
    // A row of bytes for each shard.
    {.name = "NF4",
     .text = "matrices of blocks in NF4",
     .suffix = ".nf4",
     .matrices_only = true,
     .quantized = true,
     .block = kNf4GroupWeights,
     .dtype = [](DType) { return DType::kUInt8; },
     .elements = [](int64_t weights) { return Nf4Row{weights}.bytes(); },
     .widens_to = IsComputeDType,
     .widen = WidenNf4},
};

}  // namespace

const StorageRow& RowOf(Storage storage) { return kRows[static_cast<int>(storage)]; }

absl::string_view ToString(Storage storage) { return RowOf(storage).name; }

}  // namespace shale
