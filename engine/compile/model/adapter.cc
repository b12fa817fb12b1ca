#include "engine/compile/model/adapter.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/strings/pattern.h"

namespace shale {
namespace {

// The words of transformers for the linear layers of a block that the engine has as one matrix, too.
struct Words {
  absl::string_view qkv, output, up, down;
};

// Chooses as ChooseHfModelType does (engine/files/hugging_face/config.h). Without a word for `qkv`, queries, keys and
// values are layers of their own.
Words WordsOf(const DecoderConfig& c) {
  if (c.norm == NormKind::kRmsNorm) return {"", "o_proj", "up_proj", "down_proj"};
  if (c.position == PositionKind::kLearned) return {"c_attn", "c_proj", "c_fc", "c_proj"};
  if (LikeStarcoder2(c)) return {"", "o_proj", "c_fc", "c_proj"};
  return {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"};
}

}  // namespace

bool LikeStarcoder2(const DecoderConfig& c) {
  return c.norm == NormKind::kLayerNorm && c.position == PositionKind::kRotary && !c.parallel_block &&
         (c.attention_window != 0 || (c.kv_heads != 1 && c.kv_heads != c.heads));
}

std::string AdaptableLinear::NameIn(int64_t layer) const { return absl::StrCat("blocks.", layer, ".", name); }

std::vector<AdaptableLinear> AdaptableLinears(const DecoderConfig& c) {
  const Words words = WordsOf(c);
  const int64_t queries = c.heads * c.head_width, keys = c.kv_heads * c.head_width;
  std::vector<AdaptableLinear> linears;
  const auto add = [&](absl::string_view linear, absl::string_view word, int64_t row, int64_t out, int64_t in) {
    const absl::string_view sublayer = linear.substr(0, linear.find('.') + 1);
    linears.push_back({absl::StrCat(sublayer, word), std::string(linear), row, out, in});
  };
  if (!words.qkv.empty()) {
    add("attention.qkv", words.qkv, 0, queries + 2 * keys, c.width);
  } else {
    add("attention.qkv", "q_proj", 0, queries, c.width);
    add("attention.qkv", "k_proj", queries, keys, c.width);
    add("attention.qkv", "v_proj", queries + keys, keys, c.width);
  }
  add("attention.output", words.output, 0, c.width, queries);
  if (IsGated(c.activation)) {
    add("ffn.gate_up", "gate_proj", 0, c.hidden, c.width);
    add("ffn.gate_up", "up_proj", c.hidden, c.hidden, c.width);
  } else {
    add("ffn.up", words.up, 0, c.hidden, c.width);
  }
  add("ffn.down", words.down, 0, c.width, c.hidden);
  return linears;
}

std::vector<AdaptableLinear> AdaptedLinears(const DecoderConfig& c, int64_t layer) {
  std::vector<AdaptableLinear> adapted;
  if (!c.adapter) return adapted;
  for (AdaptableLinear& linear : AdaptableLinears(c)) {
    const std::string name = linear.NameIn(layer);
    const std::vector<std::string>& targets = c.adapter->targets;
    if (std::any_of(targets.begin(), targets.end(), [&](const auto& t) { return MatchesTarget(t, name); })) {
      adapted.push_back(std::move(linear));
    }
  }
  return adapted;
}

bool MatchesTarget(absl::string_view target, absl::string_view name) {
  return MatchesPattern(target, name) || MatchesPattern(absl::StrCat("*.", target), name);
}

bool IsAdapterParameter(absl::string_view name) { return MatchesAny(AdapterParameterPatterns(), name); }

std::vector<std::string> AdapterParameterPatterns() { return {"*.lora_A.weight", "*.lora_B.weight"}; }

unsigned __int128 AdapterParameterCount(const DecoderConfig& c) {
  unsigned __int128 count = 0;
  if (!c.adapter) return count;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (const AdaptableLinear& linear : AdaptedLinears(c, layer)) {
      count += static_cast<unsigned __int128>(c.adapter->rank) * (linear.in + linear.out);
    }
  }
  return count;
}

}  // namespace shale
