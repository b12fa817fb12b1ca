// Structs for the ways to store master weights and bf16 states, for kernels of update rules. Load and Store access N
// elements from element i on.
#pragma once

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "kernels/counter_random.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/rounding.h"
#include "kernels/ops/update.h"

namespace shale::cuda {

// RoundedMaster, LowBits and Joined convert as RoundMaster, MasterLowBits and JoinMaster of kernels/dtype.h do.
SHALE_DEVICE BFloat16 RoundedMaster(float p) {
  const unsigned bits = __float_as_uint(p);
  return {static_cast<uint16_t>(p != p ? bits >> 16 | 0x40 : (bits + 0x8000u) >> 16)};
}
SHALE_DEVICE int16_t LowBits(float p, BFloat16 weight) {
  const unsigned difference = __float_as_uint(p) - (static_cast<unsigned>(weight.bits) << 16);
  return p != p ? int16_t{0} : static_cast<int16_t>(static_cast<uint16_t>(difference));
}
SHALE_DEVICE float Joined(BFloat16 weight, int16_t low) {
  return __uint_as_float((static_cast<unsigned>(weight.bits) << 16) + static_cast<unsigned>(static_cast<int>(low)));
}

// A bf16 tensor of an update that is rounded stochastically.
struct Rounded {
  Global<BFloat16> at;
  Global<int64_t> number;
  uint64_t seed;
  int64_t shard_begin;
  int32_t group;
  uint32_t tensor;
  Rounded(const Update& op, const Tensor& t, const char* name, uint32_t tensor)
      : at(Whole<BFloat16>(t, name)),
        number(Whole<int64_t>(op.number_1, "number")),
        seed(op.seed),
        shard_begin(op.shard_begin),
        group(op.group),
        tensor(tensor) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(at, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& values) const {
    StoreRounded(at, i, values, {seed, number.Load(0), group, tensor}, shard_begin);
  }
};

struct WeightItself {  // fp32 weight alone.
  Global<float> weight;
  explicit WeightItself(const Update& op) : weight(Whole<float>(op.weight_P, "weight")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(weight, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    StoreFloats(weight, i, p);
  }
};

struct WideMaster {  // fp32 master, fp32 weight.
  Global<float> master, weight;
  explicit WideMaster(const Update& op)
      : master(Whole<float>(op.master_P, "master")), weight(Whole<float>(op.weight_P, "weight")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(master, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    StoreFloats(master, i, p);
    StoreFloats(weight, i, p);
  }
};

template <class T>
struct FloatMaster {  // fp32 master, bf16 or f16 weight.
  Global<float> master;
  Global<T> weight;
  explicit FloatMaster(const Update& op)
      : master(Whole<float>(op.master_P, "master")), weight(Whole<T>(op.weight_P, "weight")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(master, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    Pack<T, N> weights;
    for (int k = 0; k < N; ++k) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        weights.at[k] = RoundedMaster(p.at[k]);
      } else {
        weights.at[k] = Narrow<T>(p.at[k]);
      }
    }
    StoreFloats(master, i, p);
    weight.template Store<N>(i, weights);
  }
};

struct SplitMaster {  // bf16 weight and 16 low bits.
  Global<BFloat16> weight;
  Global<int16_t> low;
  explicit SplitMaster(const Update& op)
      : weight(Whole<BFloat16>(op.weight_P, "weight")), low(Whole<int16_t>(op.low_P, "low")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    const Pack<BFloat16, N> weights = weight.template Load<N>(i);
    const Pack<int16_t, N> lows = low.template Load<N>(i);
    Floats<N> p;
    for (int k = 0; k < N; ++k) p.at[k] = Joined(weights.at[k], lows.at[k]);
    return p;
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    Pack<BFloat16, N> weights;
    Pack<int16_t, N> lows;
    for (int k = 0; k < N; ++k) {
      weights.at[k] = RoundedMaster(p.at[k]);
      lows.at[k] = LowBits(p.at[k], weights.at[k]);
    }
    weight.template Store<N>(i, weights);
    low.template Store<N>(i, lows);
  }
};

// Calls run(master) with the struct that stores the masters of `op`.
template <class Run>
absl::Status WithMaster(const Update& op, const Run& run) {
  if (op.low_P.present()) return run(SplitMaster(op));
  if (op.is_own_master() && op.weight_P.dtype == DType::kBFloat16) {
    return run(Rounded(op, op.weight_P, "weight", kWeightStream));
  }
  if (!op.master_P.present()) return run(WeightItself(op));
  if (op.weight_P.dtype == DType::kFloat32) return run(WideMaster(op));
  if (op.weight_P.dtype == DType::kFloat16) return run(FloatMaster<Float16>(op));
  return run(FloatMaster<BFloat16>(op));
}

}  // namespace shale::cuda
