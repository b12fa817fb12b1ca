// Low-rank adapters of decoders: LoRA (Hu et al., 2021) and rsLoRA (Kalajdzievski, 2023).
//
// A linear layer with an adapter computes y = x W^T + scale (x A^T) B^T. A [rank, in] and B [out, rank] train, and all
// other parameters of the model are frozen. B begins as zeros, so that training begins at the base model.
//
// The engine keeps some linear layers of a block in one matrix. An adapter belongs to a layer as transformers has it,
// so that PEFT finds it there: q_proj, k_proj and v_proj are rows of attention.qkv, and gate_proj and up_proj are rows
// of ffn.gate_up. GPT-2's c_attn and Falcon's query_key_value are one layer there, too, with one adapter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/model/config.h"

namespace shale {

// Rows [row, row + out) of the weight of a linear layer, as a layer that can have an adapter.
struct AdaptableLinear {
  std::string name;    // In its block, with the last word of transformers: "attention.q_proj".
  std::string linear;  // The linear layer of the engine: "attention.qkv".
  int64_t row = 0;
  int64_t out = 0;
  int64_t in = 0;

  // Returns its name in the model: "blocks.3.attention.q_proj".
  std::string NameIn(int64_t layer) const;
  // Return the names of A and B.
  std::string NameOfA(int64_t layer) const { return NameIn(layer) + ".lora_A.weight"; }
  std::string NameOfB(int64_t layer) const { return NameIn(layer) + ".lora_B.weight"; }
};

// Returns whether the blocks of a decoder are those of StarCoder 2, whose queries, keys and values are layers of their
// own in transformers: LayerNorm, rotary positions, attention before the feed-forward layer, and what Falcon's blocks
// of this form do not have, a window or several key heads that are fewer than the query heads.
bool LikeStarcoder2(const DecoderConfig& config);

// Returns the layers of each block that can have an adapter, in the order in which a block uses them.
std::vector<AdaptableLinear> AdaptableLinears(const DecoderConfig& config);

// Returns those that have an adapter in block `layer`: none if the decoder has no adapter.
std::vector<AdaptableLinear> AdaptedLinears(const DecoderConfig& config, int64_t layer);

// Returns whether a target of a job, which is a name pattern, matches the name of a layer: the entire name, or what
// follows one of its dots.
bool MatchesTarget(absl::string_view target, absl::string_view name);

// Returns whether a parameter of a decoder is A or B of an adapter.
bool IsAdapterParameter(absl::string_view name);
// The name patterns of those parameters.
std::vector<std::string> AdapterParameterPatterns();

// Returns how many parameters the adapters of a decoder have.
unsigned __int128 AdapterParameterCount(const DecoderConfig& config);

}  // namespace shale
