// Parts of a config.json: rotary frequencies (rope_theta and rope_scaling, or rope_parameters, which transformers 5
// writes), and the dropout that the files of a model or of its adapters ask for. The engine trains without dropout.
// What a model computes outside of training does not depend on it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/compile/model/config.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/strict_json.h"

namespace shale {

// Sets rope_theta and rope_scaling of `config` from the top-level object `top` of a config.json. Adds errors for
// scalings other than llama3 and linear, partial rotation, settings that differ between layers, and two spellings that
// contradict each other. REQUIRES: config->max_positions is set.
void ReadHfRope(const HfFields& top, HfErrors& errors, DecoderConfig* config);
// Does the same for a family whose layers with a window have a base of their own, which becomes window_rope_theta:
// rope_local_base_freq, or rope_parameters with an object for each kind of layer. The others have the scaling. Adds an
// error for a scaling that transformers does not look at, because it stands elsewhere or has another spelling.
void ReadHfRopeOfKinds(const HfFields& top, HfErrors& errors, DecoderConfig* config);

// Returns the dropout with which transformers would train the model of `folder`/config.json: "attn_pdrop 0.1,
// embd_pdrop 0.1, resid_pdrop 0.1". Returns an empty string if there is none. Keys that are absent mean what
// transformers takes: GPT-2 has dropout by default. Returns the errors of ReadHfConfig.
absl::StatusOr<std::string> HfDropout(const std::string& folder);

// Does the same for the adapters of `folder`/adapter_config.json: "lora_dropout 0.05". Returns the errors of
// ReadHfAdapterConfig.
absl::StatusOr<std::string> HfAdapterDropout(const std::string& folder);

struct DropoutKey {
  absl::string_view key;
  double absent;  // What transformers takes if the key is absent.
};
// The keys of an adapter_config.json. Those of a config.json are the family's (engine/files/hugging_face/family.h).
absl::Span<const DropoutKey> AdapterDropoutKeys();

// Reads the keys, and returns those that ask for dropout with their values, as HfDropout does. Adds an error for each
// value that is no probability.
std::string ReadDropout(const HfFields& fields, absl::Span<const DropoutKey> keys);

}  // namespace shale
