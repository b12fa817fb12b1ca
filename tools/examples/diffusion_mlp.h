// A model of one's own with data of its own: a denoising diffusion MLP (Ho et al., 2020) on points of the plane.
//
// A position is a point x of a circle to which noise e was added: a x + s e, with a^2 + s^2 = 1. The features are the
// noisy point and an embedding of the noise level. The model predicts e, and the loss is the mean squared error. There
// are no tokens and no classes, so neither the model nor the data has a vocabulary.
//
// T positions, F features, D target values, C width of the residual stream.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/shale.h"

namespace shale::examples {

// Noisy points without an end. What a position holds is a function of the seed and of its number, so a run may read
// any sample at any time and keeps no state. Safe for concurrent use.
class NoisyPoints : public DataSource {
 public:
  static constexpr int64_t kFrequencies = 3;
  static constexpr int64_t kFeatures = 2 + 2 * kFrequencies;  // F
  static constexpr int64_t kValues = 2;                       // D

  // A sample has `points` positions. If `weighted`, a target has the weight min(1, 5 / SNR) with SNR = (a / s)^2, after
  // "Min-SNR" (Hang et al., 2023), and the job sets data.target_weights.
  NoisyPoints(uint64_t seed, int64_t points, bool weighted = false)
      : DataSource({.name = absl::StrCat("noisy points, seed ", seed, weighted ? ", weighted" : ""),
                    .sequence_length = points,
                    .features = kFeatures,
                    .target_values = kValues,
                    .has_weights = weighted}),
        seed_(seed) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override {
    const int64_t points = description().sequence_length;
    for (int64_t i = 0; i < points; ++i) {
      const uint64_t number = static_cast<uint64_t>(sample) * static_cast<uint64_t>(points) + static_cast<uint64_t>(i);
      constexpr double kPi = std::numbers::pi;
      const double angle = 2 * kPi * Uniform(number, 0), level = Uniform(number, 1);
      const double signal = std::cos(kPi / 2 * level), noise = std::sin(kPi / 2 * level);  // a and s.
      // Two normal numbers, by Box and Muller.
      const double radius = std::sqrt(-2 * std::log(1 - Uniform(number, 2))), turn = 2 * kPi * Uniform(number, 3);
      const double e[2] = {radius * std::cos(turn), radius * std::sin(turn)};
      const double x[2] = {std::numbers::sqrt2 * std::cos(angle), std::numbers::sqrt2 * std::sin(angle)};

      float* const features = &out.features[i * kFeatures];
      for (int64_t d = 0; d < kValues; ++d) {
        features[d] = static_cast<float>(signal * x[d] + noise * e[d]);
        out.target_values[i * kValues + d] = static_cast<float>(e[d]);
      }
      for (int64_t f = 0; f < kFrequencies; ++f) {
        const double phase = kPi * static_cast<double>(1 << f) * level;
        features[2 + 2 * f] = static_cast<float>(std::sin(phase));
        features[3 + 2 * f] = static_cast<float>(std::cos(phase));
      }
      if (description().has_weights) {
        const double inverse_snr = noise * noise / (signal * signal);
        out.weights[i] = static_cast<float>(std::min(1.0, 5 * inverse_snr));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Returns a number in [0, 1): draw `draw`, 0 to 3, of a position. SplitMix64 (Steele et al., 2014) of a counter.
  double Uniform(uint64_t number, uint64_t draw) const {
    const uint64_t counter = 4 * number + draw;
    return static_cast<double>(Mix(Mix(seed_) + counter * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
  }
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  const uint64_t seed_;
};

struct DiffusionMlpSettings {
  int64_t width = 32;
  int64_t hidden = 64;  // Inner width of a block.
  int64_t groups = 4;   // Of each GroupNorm. Divides the width.
  int64_t blocks = 2;
};

namespace diffusion_mlp {

// Adds the layers of one unit. Their parameters are UNIT.LAYER.weight and UNIT.LAYER.bias.
struct Unit {
  GraphBuilder& b;
  std::string name;
  GroupId group = b.AddGroup(name);

  ParameterId Add(const std::string& parameter, std::vector<int64_t> shape, const Initializer& initializer) const {
    return b.AddParameter(group, absl::StrCat(name, ".", parameter), std::move(shape), initializer);
  }
  Tensor Dense(const Tensor& x, int64_t out, const std::string& layer) const {
    const int64_t in = x.dim(1);
    const Initializer normal = {Initializer::Kind::kNormal, 1 / std::sqrt(static_cast<double>(in))};
    const ParameterId weight = Add(layer + ".weight", {out, in}, normal);
    return Linear(b, x, weight, Add(layer + ".bias", {out}, {Initializer::Kind::kZeros}), layer);
  }
  Tensor Normalized(const Tensor& x, int64_t groups) const {
    const ParameterId weight = Add("norm.weight", {x.dim(1)}, {Initializer::Kind::kOnes});
    const ParameterId bias = Add("norm.bias", {x.dim(1)}, {Initializer::Kind::kZeros});
    return GroupNorm(b, x, groups, {.weight = weight, .bias = bias}, "norm");
  }
};

inline absl::StatusOr<ModelGraph> Build(const DiffusionMlpSettings& s, const GraphOptions& options) {
  GraphBuilder b(options);
  const Unit points = {b, "points"};
  b.BeginUnit("points");
  b.EndUnit(points.Dense(Features(b, NoisyPoints::kFeatures), s.width, "out"));

  for (int64_t i = 0; i < s.blocks; ++i) {
    const Unit block = {b, absl::StrCat("blocks.", i)};
    b.BeginUnit(block.name, static_cast<int>(i));
    b.SetSublayer(Sublayer::kFeedForward);  // What the preset FFN recomputes.
    const Tensor x = b.UnitInput();
    const Tensor up = block.Dense(block.Normalized(x, s.groups), s.hidden, "up");
    const Tensor level = block.Dense(Features(b, NoisyPoints::kFeatures), s.hidden, "level");  // Every block knows it.
    const Tensor inner = GeluTanh(b, AddResidual(b, up, level, "sum"));
    b.EndUnit(AddResidual(b, x, block.Dense(inner, s.width, "down"), "out"));
  }

  const Unit noise = {b, "noise"};
  b.BeginUnit("noise");
  MeanSquaredError(b, noise.Dense(noise.Normalized(b.UnitInput(), s.groups), NoisyPoints::kValues, "out"));
  b.EndLastUnit();
  return b.Finish();
}

}  // namespace diffusion_mlp

inline CustomModel DiffusionMlp(const DiffusionMlpSettings& s) {
  return {.name = "diffusion_mlp",
          .digest = absl::StrCat("width=", s.width, " hidden=", s.hidden, " groups=", s.groups, " blocks=", s.blocks),
          .build = [s](const GraphOptions& options) { return diffusion_mlp::Build(s, options); },
          .layers = s.blocks};
}

}  // namespace shale::examples
