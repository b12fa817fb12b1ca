// GroupNorm, channels last. A group may have few channels, so vectors run over all channels of a position: sums are
// kept per channel, and the values of a group (mean, rstd, ...) are copied to each of its channels before use.
//
// The positions of a sample are divided into blocks by size alone. Each block leaves its sums per channel in scratch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/group_norm.cc"
#include <cmath>
#include <cstring>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// The following functions process `positions` positions of `c` channels, all of one sample.

// sums[c] = sum of x, or of (x - mean)^2 if `mean` is not null.
template <class T>
void ChannelSumsT(const T* x, int64_t positions, int64_t c, const float* mean, float* sums) {
  std::memset(sums, 0, static_cast<size_t>(c) * sizeof(float));
  for (int64_t l = 0; l < positions; ++l, x += c) {
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      Vector value = lanes.Load(x + i);
      if (mean != nullptr) {
        value = hn::Sub(value, lanes.Load(mean + i));
        value = hn::Mul(value, value);
      }
      lanes.Store(hn::Add(lanes.Load(sums + i), value), sums + i);
    });
  }
}

template <class T>
void NormalizeT(const T* x, int64_t positions, int64_t c, const float* mean, const float* rstd, const T* weight,
                const T* bias, T* y) {
  for (int64_t l = 0; l < positions; ++l, x += c, y += c) {
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector n = hn::Mul(hn::Sub(lanes.Load(x + i), lanes.Load(mean + i)), lanes.Load(rstd + i));
      lanes.Store(hn::MulAdd(n, lanes.Load(weight + i), lanes.Load(bias + i)), y + i);
    });
  }
}

// With n = (x - mean) rstd: sums[c] = sum of d_y n, sums[C + c] = sum of d_y.
template <class T>
void GradientSumsT(const T* d_y, const T* x, int64_t positions, int64_t c, const float* mean, const float* rstd,
                   float* sums) {
  std::memset(sums, 0, static_cast<size_t>(2 * c) * sizeof(float));
  for (int64_t l = 0; l < positions; ++l, x += c, d_y += c) {
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector d = lanes.Load(d_y + i);
      const Vector n = hn::Mul(hn::Sub(lanes.Load(x + i), lanes.Load(mean + i)), lanes.Load(rstd + i));
      lanes.Store(hn::MulAdd(d, n, lanes.Load(sums + i)), sums + i);
      lanes.Store(hn::Add(d, lanes.Load(sums + c + i)), sums + c + i);
    });
  }
}

// d_x = rstd (d_y weight - mean_g - n mean_gn), where mean_g and mean_gn are the means of d_y weight and of d_y weight
// n over the group. `spread` holds mean, rstd, mean_g and mean_gn per channel.
template <class T>
void InputGradientT(const T* d_y, const T* x, int64_t positions, int64_t c, const float* spread, const T* weight,
                    T* d_x) {
  for (int64_t l = 0; l < positions; ++l, x += c, d_y += c, d_x += c) {
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector rstd = lanes.Load(spread + c + i);
      const Vector n = hn::Mul(hn::Sub(lanes.Load(x + i), lanes.Load(spread + i)), rstd);
      const Vector g = hn::Mul(lanes.Load(d_y + i), lanes.Load(weight + i));
      const Vector centred = hn::Sub(g, lanes.Load(spread + 2 * c + i));
      lanes.Store(hn::Mul(rstd, hn::NegMulAdd(n, lanes.Load(spread + 3 * c + i), centred)), d_x + i);
    });
  }
}

void ChannelSums(const Tensor& x, int64_t first, int64_t positions, const float* mean, float* sums) {
  const int64_t c = x.dim(2);
  x.dtype == DType::kFloat32 ? ChannelSumsT(x.as<const float>() + first * c, positions, c, mean, sums)
                             : ChannelSumsT(x.as<const BFloat16>() + first * c, positions, c, mean, sums);
}

template <class T>
void NormalizeOf(const GroupNormForward& op, int64_t first, int64_t positions, const float* mean, const float* rstd) {
  const int64_t c = op.x_BLC.dim(2);
  NormalizeT(op.x_BLC.as<const T>() + first * c, positions, c, mean, rstd, op.weight_C.as<const T>(),
             op.bias_C.as<const T>(), op.y_BLC.as<T>() + first * c);
}
void Normalize(const GroupNormForward& op, int64_t first, int64_t positions, const float* mean, const float* rstd) {
  ForActivations(op.x_BLC.dtype,
                 [&](auto element) HWY_ATTR { NormalizeOf<decltype(element)>(op, first, positions, mean, rstd); });
}

template <class T>
void GradientSumsOf(const GroupNormBackward& op, int64_t first, int64_t positions, const float* spread, float* sums) {
  const int64_t c = op.x_BLC.dim(2);
  GradientSumsT(op.d_y_BLC.as<const T>() + first * c, op.x_BLC.as<const T>() + first * c, positions, c, spread,
                spread + c, sums);
}
void GradientSums(const GroupNormBackward& op, int64_t first, int64_t positions, const float* spread, float* sums) {
  op.x_BLC.dtype == DType::kFloat32 ? GradientSumsOf<float>(op, first, positions, spread, sums)
                                    : GradientSumsOf<BFloat16>(op, first, positions, spread, sums);
}

template <class T>
void InputGradientOf(const GroupNormBackward& op, int64_t first, int64_t positions, const float* spread) {
  const int64_t c = op.x_BLC.dim(2);
  InputGradientT(op.d_y_BLC.as<const T>() + first * c, op.x_BLC.as<const T>() + first * c, positions, c, spread,
                 op.weight_C.as<const T>(), op.d_x_BLC.as<T>() + first * c);
}
void InputGradient(const GroupNormBackward& op, int64_t first, int64_t positions, const float* spread) {
  ForActivations(op.x_BLC.dtype,
                 [&](auto element) HWY_ATTR { InputGradientOf<decltype(element)>(op, first, positions, spread); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(ChannelSums);
HWY_EXPORT(Normalize);
HWY_EXPORT(GradientSums);
HWY_EXPORT(InputGradient);

// The sizes of an op, and how the positions of a sample are divided into blocks.
struct Plan {
  int64_t samples, channels, groups;
  Partition positions;  // Of one sample.

  Plan(const Tensor& x_BLC, const Tensor& mean_BG)
      : samples(x_BLC.dim(0)),
        channels(x_BLC.dim(2)),
        groups(mean_BG.dim(1)),
        positions(PartitionOf(x_BLC.dim(1), RowsPerBlock(x_BLC.dim(2)), kMostPartials)) {}

  int64_t blocks() const { return samples * positions.blocks(); }
  int64_t group_of(int64_t channel) const { return channel / (channels / groups); }
  double group_size() const { return static_cast<double>(positions.n * (channels / groups)); }

  // Calls body(sample, block, first, positions) for every block. `first` is the first position of the block, numbered
  // through all samples.
  template <class Body>
  void ForBlocks(int threads, const Body& body) const {
    ParallelFor(threads, blocks(), 1, [&](int64_t block, int64_t) {
      const int64_t sample = block / positions.blocks();
      const int64_t begin = block % positions.blocks() * positions.block;
      body(sample, block, sample * positions.n + begin, std::min(positions.block, positions.n - begin));
    });
  }

  // Returns the sum over a group's channels of weight(channel) times the channel's sums in all blocks of the sample.
  // The sums of block b begin at sums + b * stride.
  template <class Weight>
  double GroupTotal(const float* sums, int64_t stride, int64_t sample, int64_t group, const Weight& weight) const {
    const int64_t width = channels / groups;
    double total = 0;
    for (int64_t c = group * width; c < (group + 1) * width; ++c) {
      double channel_total = 0;
      for (int64_t b = 0; b < positions.blocks(); ++b) {
        channel_total += sums[(sample * positions.blocks() + b) * stride + c];
      }
      total += channel_total * weight(c);
    }
    return total;
  }

  // spread[c] = per_group[group of c].
  void Spread(const float* per_group, float* spread) const {
    for (int64_t c = 0; c < channels; ++c) spread[c] = per_group[group_of(c)];
  }
};

double One(int64_t) { return 1; }

int64_t FloatBytes(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

}  // namespace

// Scratch: the blocks' sums [blocks, C], then mean and rstd spread over channels [B, 2, C].
int64_t ScratchBytesOf(const GroupNormForward& op, const Context& context) {
  const Plan plan(op.x_BLC, op.mean_BG);
  return FloatBytes((plan.blocks() + 2 * plan.samples) * plan.channels);
}

absl::Status Run(const GroupNormForward& op, Scratch scratch, const Context& context) {
  const Plan plan(op.x_BLC, op.mean_BG);
  const int64_t c = plan.channels;
  auto* sums = reinterpret_cast<float*>(scratch.data);
  float* spread = sums + plan.blocks() * c;
  float* means = op.mean_BG.as<float>();
  float* rstds = op.rstd_BG.as<float>();

  plan.ForBlocks(context.threads, [&](int64_t sample, int64_t block, int64_t first, int64_t positions) {
    HWY_DYNAMIC_DISPATCH(ChannelSums)(op.x_BLC, first, positions, nullptr, sums + block * c);
  });
  for (int64_t b = 0; b < plan.samples; ++b) {
    for (int64_t g = 0; g < plan.groups; ++g) {
      means[b * plan.groups + g] = static_cast<float>(plan.GroupTotal(sums, c, b, g, One) / plan.group_size());
    }
    plan.Spread(means + b * plan.groups, spread + 2 * b * c);
  }
  plan.ForBlocks(context.threads, [&](int64_t sample, int64_t block, int64_t first, int64_t positions) {
    HWY_DYNAMIC_DISPATCH(ChannelSums)(op.x_BLC, first, positions, spread + 2 * sample * c, sums + block * c);
  });
  for (int64_t b = 0; b < plan.samples; ++b) {
    for (int64_t g = 0; g < plan.groups; ++g) {
      const double variance = plan.GroupTotal(sums, c, b, g, One) / plan.group_size();
      rstds[b * plan.groups + g] = static_cast<float>(1 / std::sqrt(variance + op.epsilon));
    }
    plan.Spread(rstds + b * plan.groups, spread + (2 * b + 1) * c);
  }
  plan.ForBlocks(context.threads, [&](int64_t sample, int64_t block, int64_t first, int64_t positions) {
    const float* mean = spread + 2 * sample * c;
    HWY_DYNAMIC_DISPATCH(Normalize)(op, first, positions, mean, mean + c);
  });
  return absl::OkStatus();
}

// Scratch: the blocks' sums [blocks, 2, C], then mean, rstd, mean_g and mean_gn spread over channels [B, 4, C].
int64_t ScratchBytesOf(const GroupNormBackward& op, const Context& context) {
  const Plan plan(op.x_BLC, op.mean_BG);
  return FloatBytes((2 * plan.blocks() + 4 * plan.samples) * plan.channels);
}

absl::Status Run(const GroupNormBackward& op, Scratch scratch, const Context& context) {
  const Plan plan(op.x_BLC, op.mean_BG);
  const int64_t c = plan.channels;
  auto* sums = reinterpret_cast<float*>(scratch.data);
  float* spread = sums + 2 * plan.blocks() * c;
  for (int64_t b = 0; b < plan.samples; ++b) {
    plan.Spread(op.mean_BG.as<const float>() + b * plan.groups, spread + 4 * b * c);
    plan.Spread(op.rstd_BG.as<const float>() + b * plan.groups, spread + (4 * b + 1) * c);
  }
  plan.ForBlocks(context.threads, [&](int64_t sample, int64_t block, int64_t first, int64_t positions) {
    HWY_DYNAMIC_DISPATCH(GradientSums)(op, first, positions, spread + 4 * sample * c, sums + 2 * block * c);
  });
  AddPartials(sums, plan.blocks(), 2 * c, c, op.d_weight_C.as<float>(), op.accumulate, context.threads);
  AddPartials(sums + c, plan.blocks(), 2 * c, c, op.d_bias_C.as<float>(), op.accumulate, context.threads);

  const auto weight = [&](int64_t channel) -> double {
    return op.weight_C.dtype == DType::kFloat32 ? op.weight_C.as<const float>()[channel]
                                                : ToFloat(op.weight_C.as<const BFloat16>()[channel]);
  };
  for (int64_t b = 0; b < plan.samples; ++b) {
    float* mean_g = spread + (4 * b + 2) * c;
    float* mean_gn = spread + (4 * b + 3) * c;
    const int64_t width = c / plan.groups;
    for (int64_t g = 0; g < plan.groups; ++g) {
      const double gn = plan.GroupTotal(sums, 2 * c, b, g, weight) / plan.group_size();
      const double total = plan.GroupTotal(sums + c, 2 * c, b, g, weight) / plan.group_size();
      std::fill_n(mean_gn + g * width, width, static_cast<float>(gn));
      std::fill_n(mean_g + g * width, width, static_cast<float>(total));
    }
  }
  plan.ForBlocks(context.threads, [&](int64_t sample, int64_t block, int64_t first, int64_t positions) {
    HWY_DYNAMIC_DISPATCH(InputGradient)(op, first, positions, spread + 4 * sample * c);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
