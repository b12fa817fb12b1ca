// NF4 with double quantization: the format in which frozen weights are stored in 4 bits (Dettmers et al., 2023,
// "QLoRA", arXiv 2305.14314). The numbers are those of bitsandbytes (github.com/bitsandbytes-foundation/bitsandbytes,
// quantize_4bit with compress_statistics); tests/kernels/nf4_test.cc compares the bytes.
//
//   weight = Nf4Value(c) * absmax            c: 4 bits; absmax: the largest |weight| of its block of 64 weights
//   absmax = map[q] * scale + mean           q: 8 bits; map: SignedMap (kernels/dynamic_map.h)
//
// `mean` is the mean of the absmax of all blocks of a parameter. `scale` is the largest |absmax - mean| of a group of
// 256 blocks. Blocks and groups are counted from the parameter's first weight; the last ones may be short. A weight and
// an absmax get the code whose value is nearest. One number differs from bitsandbytes: a block of zeros gets the code
// of 0 rather than that of -1, which its absmax, not quite 0 after quantization, would turn into another weight.
//
// A row is a part of a parameter group: a multiple of kNf4GroupWeights weights, as bytes. For n weights they are
//
//   n/2 bytes: codes, the first of two in the upper half | n/64 bytes: q | n/16384 f32: scale | n/16384 f32: mean
//
// The mean lies beside each scale, so that a row is divided at groups without a table of parameters.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace shale {

inline constexpr int64_t kNf4BlockWeights = 64;
inline constexpr int64_t kNf4GroupBlocks = 256;
inline constexpr int64_t kNf4GroupWeights = kNf4BlockWeights * kNf4GroupBlocks;

inline constexpr int kNf4Codes = 16;
inline constexpr int kNf4ZeroCode = 7;
// Returns the value of a code: quantiles of a normal distribution, scaled to [-1, 1], with 0 among them. Both host code
// and kernels can call it.
constexpr float Nf4Value(int code) {
  constexpr float kValues[kNf4Codes] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  return kValues[code];
}

// Where the parts of a row of `weights` weights lie, in bytes. REQUIRES: a multiple of kNf4GroupWeights.
struct Nf4Row {
  int64_t weights = 0;
  constexpr int64_t codes_begin() const { return 0; }
  constexpr int64_t absmax_begin() const { return weights / 2; }
  constexpr int64_t scales_begin() const { return absmax_begin() + weights / kNf4BlockWeights; }
  constexpr int64_t means_begin() const { return scales_begin() + groups() * static_cast<int64_t>(sizeof(float)); }
  constexpr int64_t bytes() const { return means_begin() + groups() * static_cast<int64_t>(sizeof(float)); }
  constexpr int64_t groups() const { return weights / kNf4GroupWeights; }
};

// Quantizes a block of 1 to 64 weights. Stores one code for two weights in `codes`; the code beside the last of an odd
// number of weights is that of 0. Returns the absmax, which is not finite if a weight is not.
float QuantizeNf4Block(absl::Span<const float> weights, uint8_t* codes);
// Returns the same absmax and computes no codes.
float AbsmaxOfNf4Block(absl::Span<const float> weights);
// Returns the mean of the absmax of all blocks of a parameter. REQUIRES: not empty.
float MeanOfAbsmax(absl::Span<const float> absmax);
// Quantizes the absmax of 1 to 256 blocks into as many codes, and returns their scale.
float QuantizeAbsmax(absl::Span<const float> absmax, float mean, uint8_t* codes);

// Stores the absmax of 1 to 256 blocks: map[q] * scale, rounded to fp32, plus mean, rounded again.
void DequantizeAbsmax(const uint8_t* codes, float scale, float mean, absl::Span<float> absmax);
// Stores in `weights`, up to kNf4GroupWeights of them, what the codes of a group and of its absmax mean: products of
// the value of a code and the absmax of its block, in fp32.
void DequantizeNf4(const uint8_t* codes, const uint8_t* absmax, float scale, float mean, absl::Span<float> weights);

}  // namespace shale
