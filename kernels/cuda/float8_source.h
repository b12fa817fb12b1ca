// The matrices that become fp8, as kernels read them ([Note: sources of fp8] in kernels/ops/float8.h).
//
// A source hands out packs of kPackOf<T> adjacent numbers of a row. Load requests what a pack is computed from, and
// Values computes it, rounded to T. So a thread requests all of its packs, or those of one of its turns, before it
// waits for any. Numbers from column `end` on are zeros. kAligned promises that packs of the source's operands are
// whole and begin at multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/gate.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/float8.h"

namespace shale::cuda {

template <class T>
struct MatrixSource {
  using Element = T;
  using Raw = Pack<T, kPackOf<T>>;
  static constexpr bool kActivations = false;  // Whether the format is always f8e4m3.
  static constexpr int kHalves = 1;            // Of a row. The numbers in each are computed from the same ones.
  static constexpr int kTurns = 1;             // In which a thread loads its packs, so that registers hold them.
  Rows<T> x;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    return LoadPack<kAligned>(x.at, x.Begin(row), column, end);
  }
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const { return raw; }
};

template <class T>
struct NormSource {
  using Element = T;
  struct Raw {
    Pack<T, kPackOf<T>> x, weight;
    float rstd = 0;
  };
  static constexpr bool kActivations = true;
  static constexpr int kHalves = 1;
  static constexpr int kTurns = 2;
  Rows<T> x;
  Global<T> weight;
  Global<float> rstd;
  float weight_offset;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    return {LoadPack<kAligned>(x.at, x.Begin(row), column, end), LoadPack<kAligned>(weight, 0, column, end),
            rstd.Load(row)};
  }
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    Pack<T, kPackOf<T>> values = {};
    SHALE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      // As in norm.cu. A row may have an rstd that is not finite, which must not reach what lies past its end.
      const float value = Widen(raw.x.at[i]) * raw.rstd * (weight_offset + Widen(raw.weight.at[i]));
      if (column + i < end) values.at[i] = Narrow<T>(value);
    }
    return values;
  }
};

template <class T>
struct GateSource {
  using Element = T;
  struct Raw {
    Pack<T, kPackOf<T>> gate, up;
  };
  static constexpr bool kActivations = true;
  static constexpr int kHalves = 1;
  static constexpr int kTurns = 2;
  Global<T> gate_up;
  int64_t F;
  GateKind kind;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    return {LoadPack<kAligned>(gate_up, row * 2 * F, column, end),
            LoadPack<kAligned>(gate_up, row * 2 * F + F, column, end)};
  }
  template <class Gate>
  SHALE_DEVICE static Pack<T, kPackOf<T>> ValuesOf(const Raw& raw) {
    Pack<T, kPackOf<T>> values;
    SHALE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float g = Widen(raw.gate.at[i]);
      values.at[i] = Narrow<T>(GatedValue(Gate::Of(g), g, Widen(raw.up.at[i])));
    }
    return values;
  }
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    return kind == GateKind::kSilu ? ValuesOf<SiluGate>(raw) : ValuesOf<TanhGeluGate>(raw);
  }
};

// A row has the gradients of F gates, then those of F ups.
template <class T>
struct GateGradientSource {
  using Element = T;
  struct Raw {
    Pack<T, kPackOf<T>> gate, up, d_y;
  };
  static constexpr bool kActivations = false;
  static constexpr int kHalves = 2;
  static constexpr int kTurns = 4;
  Global<T> gate_up, d_y;
  int64_t F;
  GateKind kind;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    const int64_t gates = row * 2 * F, ups = gates + F, gradients = row * F;
    if constexpr (kAligned) {
      if (column >= end) return {};
      const int64_t f = column < F ? column : column - F;
      return {gate_up.template Load<kPackOf<T>>(gates + f), gate_up.template Load<kPackOf<T>>(ups + f),
              d_y.template Load<kPackOf<T>>(gradients + f)};
    } else {
      Raw raw = {};
      SHALE_UNROLL
      for (int i = 0; i < kPackOf<T>; ++i) {
        if (column + i >= end) continue;
        const int64_t f = column + i < F ? column + i : column + i - F;
        raw.gate.at[i] = gate_up.Load(gates + f);
        raw.up.at[i] = gate_up.Load(ups + f);
        raw.d_y.at[i] = d_y.Load(gradients + f);
      }
      return raw;
    }
  }
  template <class Gate>
  SHALE_DEVICE Pack<T, kPackOf<T>> ValuesOf(const Raw& raw, int64_t column) const {
    Pack<T, kPackOf<T>> values;
    SHALE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float g = Widen(raw.gate.at[i]), u = Widen(raw.up.at[i]), d = Widen(raw.d_y.at[i]);
      const GateParts parts = Gate::Of(g);
      values.at[i] = Narrow<T>(column + i < F ? GateGradient(parts, u, d) : UpGradient(parts, g, d));
    }
    return values;
  }
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    return kind == GateKind::kSilu ? ValuesOf<SiluGate>(raw, column) : ValuesOf<TanhGeluGate>(raw, column);
  }
};

// Calls run(source) with the source of an op on x.
template <class Run>
absl::Status WithFloat8Source(const Tensor& x, const Float8Source& source, const Run& run) {
  if (source.kind == Float8Source::Kind::kMatrix) {
    return WithElement(x.dtype, [&](auto element) { return run(MatrixSource<decltype(element)>{{x, "x"}}); });
  }
  const auto of = [&](auto element) {
    using T = decltype(element);
    if (source.kind == Float8Source::Kind::kNorm) {
      return run(NormSource<T>{
          {x, "x"}, Whole<T>(source.weight_C, "weight"), Whole<float>(source.rstd_R, "rstd"), source.weight_offset});
    }
    const auto gate_up = Whole<T>(x, "x");
    if (source.kind == Float8Source::Kind::kGate) return run(GateSource<T>{gate_up, x.dim(1) / 2, source.gate});
    return run(GateGradientSource<T>{gate_up, Whole<T>(source.d_y_RF, "d_y"), x.dim(1) / 2, source.gate});
  };
  return x.dtype == DType::kFloat16 ? of(Float16()) : of(BFloat16());
}

// Returns whether the operands of a source allow kAligned, if the packs of a row are whole.
inline bool SourceAligned(const Tensor& x, const Float8Source& source) {
  return RowsAligned(x) && RowsAligned(source.weight_C) && RowsAligned(source.d_y_RF);
}

}  // namespace shale::cuda
