// Sums over ranks.
//
// The kernel makes one pass and is bound by memory (or by the links, if the ranks' memory is on other GPUs). A thread
// owns 16 elements of every input, in packs of 16 bytes for fp32. It reads a pack from all inputs before it writes the
// sum, so that `out` may be an input.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {
namespace {

template <class T>
struct RankInputs {
  Global<T> at[kMostSummedRanks];
};

// Loads N elements. One element is not loaded as a pack, because packs are for types of up to 4 bytes.
template <int N, class T>
SHALE_DEVICE Pack<T, N> LoadPack(const Global<T>& from, int64_t i) {
  if constexpr (N == 1) {
    return {from.Load(i)};
  } else {
    return from.template Load<N>(i);
  }
}

// Three blocks per SM leave 80 registers to a thread, for the packs of several ranks. Without this number, ptxas keeps
// to 40 for compute capability 8.0, and spills. Not yet measured on a GPU.
template <class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads, 3) SumRanksKernel(RankInputs<T> inputs, int ranks, Global<T> out, int64_t n) {
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        Pack<T, kCount> sum = LoadPack<kCount>(inputs.at[0], i);
        for (int rank = 1; rank < ranks; ++rank) {
          const Pack<T, kCount> more = LoadPack<kCount>(inputs.at[rank], i);
          for (int k = 0; k < kCount; ++k) sum.at[k] += more.at[k];
        }
        return sum;
      },
      [&](auto width, int64_t i, const auto& sum) {
        if constexpr (decltype(width)::value == 1) {
          out.Store(i, sum.at[0]);
        } else {
          out.template Store<decltype(width)::value>(i, sum);
        }
      });
}

template <class T, int... kRank>
RankInputs<T> InputsOf(absl::Span<const std::byte* const> inputs, int64_t n, std::integer_sequence<int, kRank...>) {
  const auto input = [&](size_t rank) {
    const std::byte* data = rank < inputs.size() ? inputs[rank] : nullptr;
    return Global<T>(reinterpret_cast<T*>(const_cast<std::byte*>(data)), n, "input");
  };
  return {{input(kRank)...}};
}

template <class T, int N>
absl::Status Start(absl::Span<const std::byte* const> inputs, std::byte* out, int64_t n, StreamHandle stream) {
  return Launch("SumRanks", SumRanksKernel<T, N>, FlatShape(n), stream,
                InputsOf<T>(inputs, n, std::make_integer_sequence<int, kMostSummedRanks>()),
                static_cast<int>(inputs.size()), Global<T>(reinterpret_cast<T*>(out), n, "out"), n);
}

}  // namespace

absl::Status SumRanks(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                      StreamHandle stream) {
  if (inputs.empty() || inputs.size() > kMostSummedRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("SumRanks: wanted 1 to ", kMostSummedRanks, " ranks, found ", inputs.size()));
  }
  if (elements == 0) return absl::OkStatus();
  const auto aligned = [](const std::byte* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  switch (dtype) {
    case DType::kFloat32:
      return aligned(out) && std::all_of(inputs.begin(), inputs.end(), aligned)
                 ? Start<float, kPackOf<float>>(inputs, out, elements, stream)
                 : Start<float, 1>(inputs, out, elements, stream);
    case DType::kFloat64: return Start<double, 1>(inputs, out, elements, stream);
    case DType::kInt64: return Start<unsigned long long, 1>(inputs, out, elements, stream);  // Wraps.
    default:
      return absl::InvalidArgumentError(absl::StrCat("SumRanks: wanted f32, f64 or i64, found ", ToString(dtype)));
  }
}

}  // namespace shale::cuda
