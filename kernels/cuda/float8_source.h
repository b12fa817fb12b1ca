// The matrices that become fp8, as kernels read them ([Note: sources of fp8] in kernels/ops/float8.h).
//
// A source hands out packs of kPackOf<T> adjacent numbers of a row. Load requests what a pack is computed from, and
// Values computes it, rounded to T. So a thread requests all of its packs, or those of one of its turns, before it
// waits for any. Numbers from column `end` on are zeros. kAligned promises that packs of the source's operands are
// whole and begin at multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/check.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/gate.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/rope_table.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/work_division.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/float8.h"

namespace shale::cuda {

template <class T>
struct MatrixSource {
  using Element = T;
  using Raw = Pack<T, kPackOf<T>>;
  static constexpr bool kIsOfForward = false;  // Whether the format is always f8e4m3.
  static constexpr int kHalves = 1;            // Of a row. The numbers in each are computed from the same ones.
  static constexpr int kTurns = 1;             // In which a thread loads its packs, so that registers hold them.
  Rows<T> x;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    return LoadPack<kAligned>(x.at, x.Begin(row), column, end);
  }
  template <bool kAligned>
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    return raw;
  }
};

template <class T>
struct NormSource {
  using Element = T;
  struct Raw {
    Pack<T, kPackOf<T>> x, weight;
    float rstd = 0;
  };
  static constexpr bool kIsOfForward = true;
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
  template <bool kAligned>
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
struct LayerNormSource {
  using Element = T;
  struct Raw {
    Pack<T, kPackOf<T>> x, weight, bias;
    float mean = 0, rstd = 0;
  };
  static constexpr bool kIsOfForward = true;
  static constexpr int kHalves = 1;
  static constexpr int kTurns = 2;
  Rows<T> x;
  Global<T> weight, bias;
  Global<float> mean, rstd;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    return {LoadPack<kAligned>(x.at, x.Begin(row), column, end), LoadPack<kAligned>(weight, 0, column, end),
            LoadPack<kAligned>(bias, 0, column, end), mean.Load(row), rstd.Load(row)};
  }
  template <bool kAligned>
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    Pack<T, kPackOf<T>> values = {};
    SHALE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      // As in norm.cu.
      const float normal = (Widen(raw.x.at[i]) - raw.mean) * raw.rstd;
      if (column + i < end) values.at[i] = Narrow<T>(fmaf(normal, Widen(raw.weight.at[i]), Widen(raw.bias.at[i])));
    }
    return values;
  }
};

// The first `rotated` numbers of a row are heads, each of two halves. Number i of a half has its pair at the same place
// of the other half. kAligned promises that a pack lies in one half. Values loads the cosines and sines, which caches
// hold: all heads of a token read the same ones, and in Raw they would take twice the registers of the numbers.
template <class T>
struct RopeSource {
  using Element = T;
  static constexpr int kPack = kPackOf<T>;
  struct Raw {
    Pack<T, kPack> own, other;
    int32_t position = 0;
  };
  static constexpr bool kIsOfForward = false;
  static constexpr int kHalves = 1;
  static constexpr int kTurns = 2;
  Rows<T> x;
  Global<int32_t> position_ids;
  Global<float> cosines, sines;
  int64_t sequence_length, rotated, half;

  // Where a number lies in its half, and whether that is the second one of a head.
  struct Place {
    int64_t i;
    bool second;
  };
  SHALE_DEVICE Place PlaceOfColumn(int64_t column) const {
    const int64_t number_of_half = Quotient(column, half);
    return {column - number_of_half * half, number_of_half % 2 == 1};
  }
  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    const int64_t begin = x.Begin(row), s = row - Quotient(row, sequence_length) * sequence_length;
    Raw raw = {LoadPack<kAligned>(x.at, begin, column, end), {}, 0};
    raw.position = static_cast<int32_t>(PositionOf(position_ids, row, s));
    constexpr int kAtOnce = kAligned ? kPack : 1;
    SHALE_UNROLL
    for (int i = 0; i < kPack; i += kAtOnce) {
      if (column + i >= rotated) continue;
      const int64_t pair = begin + column + i + (PlaceOfColumn(column + i).second ? -half : half);
      const auto others = x.at.template Load<kAtOnce>(pair);
      SHALE_UNROLL
      for (int k = 0; k < kAtOnce; ++k) raw.other.at[i + k] = others.at[k];
    }
    return raw;
  }
  template <bool kAligned>
  SHALE_DEVICE Pack<T, kPack> Values(const Raw& raw, int64_t column, int64_t end) const {
    Pack<T, kPack> values = raw.own;
    constexpr int kAtOnce = kAligned ? kPack : 1;
    SHALE_UNROLL
    for (int i = 0; i < kPack; i += kAtOnce) {
      if (column + i >= rotated) continue;
      const Place place = PlaceOfColumn(column + i);
      const int64_t angles = raw.position * half + place.i;
      const auto cosine = LoadFloats<kAtOnce>(cosines, angles), sine = LoadFloats<kAtOnce>(sines, angles);
      SHALE_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        // As in rope.cu, where each difference is that of the same products.
        const float turned = Widen(raw.own.at[i + k]) * cosine.at[k], pair = Widen(raw.other.at[i + k]) * sine.at[k];
        values.at[i + k] = Narrow<T>(place.second ? turned + pair : turned - pair);
      }
    }
    return values;
  }
};

template <class T>
struct GeluSource {
  using Element = T;
  using Raw = Pack<T, kPackOf<T>>;
  static constexpr bool kIsOfForward = true;
  static constexpr int kHalves = 1;
  static constexpr int kTurns = 1;
  Rows<T> x;
  GeluKind kind;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    return LoadPack<kAligned>(x.at, x.Begin(row), column, end);
  }
  template <bool kAligned>
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    Pack<T, kPackOf<T>> values;
    SHALE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float x = Widen(raw.at[i]);
      values.at[i] = Narrow<T>(kind == GeluKind::kTanh ? TanhGelu::Value(x) : ErfGelu::Value(x));
    }
    return values;
  }
};

template <class T>
struct GeluGradientSource {
  using Element = T;
  struct Raw {
    Pack<T, kPackOf<T>> x, d_y;
  };
  static constexpr bool kIsOfForward = false;
  static constexpr int kHalves = 1;
  static constexpr int kTurns = 2;
  Rows<T> x;
  Global<T> d_y;
  int64_t C;
  GeluKind kind;

  template <bool kAligned>
  SHALE_DEVICE Raw Load(int64_t row, int64_t column, int64_t end) const {
    return {LoadPack<kAligned>(x.at, x.Begin(row), column, end), LoadPack<kAligned>(d_y, row * C, column, end)};
  }
  template <bool kAligned>
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    Pack<T, kPackOf<T>> values;
    SHALE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float x = Widen(raw.x.at[i]);
      const float slope = kind == GeluKind::kTanh ? TanhGelu::Derivative(x) : ErfGelu::Derivative(x);
      values.at[i] = Narrow<T>(Widen(raw.d_y.at[i]) * slope);
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
  static constexpr bool kIsOfForward = true;
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
  template <bool kAligned>
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
  static constexpr bool kIsOfForward = false;
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
  template <bool kAligned>
  SHALE_DEVICE Pack<T, kPackOf<T>> Values(const Raw& raw, int64_t column, int64_t end) const {
    return kind == GateKind::kSilu ? ValuesOf<SiluGate>(raw, column) : ValuesOf<TanhGeluGate>(raw, column);
  }
};

// Calls run(source) with kRope. Fills its table in the first RopeTableBytes bytes of scratch before.
template <class Run>
absl::Status WithRopeSource(const Tensor& x, const Float8Source& source, Scratch scratch, StreamHandle stream,
                            const Run& run) {
  const Rope rope = source.RopeOf(x);
  const RopeTable table = RopeTable::In(scratch, rope);
  SHALE_RETURN_IF_ERROR(FillRopeTable(rope, table, stream));
  return WithHalf(x.dtype, [&](auto element) {
    using T = decltype(element);
    const Float8Source::Rotation& of = source.rotation;
    return run(RopeSource<T>{Rows<T>(x, "x"), Whole<int32_t>(source.position_ids_BS, "position_ids"), table.cosines,
                             table.sines, of.sequence_length, of.columns(), of.head_width / 2});
  });
}

// Calls run(source) with the source of an op on x. `run` must leave the first RopeTableBytes bytes of scratch as they
// are.
template <class Run>
absl::Status WithFloat8Source(const Tensor& x, const Float8Source& source, Scratch scratch, StreamHandle stream,
                              const Run& run) {
  using Kind = Float8Source::Kind;
  if (source.kind == Kind::kMatrix) {
    return WithElement(x.dtype, [&](auto element) { return run(MatrixSource<decltype(element)>{{x, "x"}}); });
  }
  if (source.kind == Kind::kRope) return WithRopeSource(x, source, scratch, stream, run);
  return WithHalf(x.dtype, [&](auto element) {
    using T = decltype(element);
    const Rows<T> rows(x, "x");
    const auto weight = Whole<T>(source.weight_C, "weight"), d_y = Whole<T>(source.d_y_RF, "d_y");
    const auto rstd = Whole<float>(source.rstd_R, "rstd");
    switch (source.kind) {
      case Kind::kNorm: return run(NormSource<T>{rows, weight, rstd, source.weight_offset});
      case Kind::kLayerNorm:
        return run(LayerNormSource<T>{rows, weight, Whole<T>(source.bias_C, "bias"),
                                      Whole<float>(source.mean_R, "mean"), rstd});
      case Kind::kGelu: return run(GeluSource<T>{rows, source.gelu});
      case Kind::kGeluGradient: return run(GeluGradientSource<T>{rows, d_y, x.dim(1), source.gelu});
      case Kind::kGate: return run(GateSource<T>{Whole<T>(x, "x"), x.dim(1) / 2, source.gate});
      case Kind::kGateGradient: return run(GateGradientSource<T>{Whole<T>(x, "x"), d_y, x.dim(1) / 2, source.gate});
      case Kind::kMatrix:
      case Kind::kRope: break;  // See above.
    }
    SHALE_CHECK(false) << "no such source of fp8 matrices";
    return absl::OkStatus();
  });
}

// Returns whether the operands of a source allow kAligned, if the packs of a row are whole.
inline bool SourceAligned(const Tensor& x, const Float8Source& source) {
  const bool whole_halves =
      source.kind != Float8Source::Kind::kRope || source.rotation.head_width / 2 % (kPackBytes / SizeOf(x.dtype)) == 0;
  return whole_halves && RowsAligned(x) && RowsAligned(source.weight_C) && RowsAligned(source.bias_C) &&
         RowsAligned(source.d_y_RF);
}

}  // namespace shale::cuda
