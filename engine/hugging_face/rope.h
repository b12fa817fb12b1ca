// Reads rotary frequencies from config.json: rope_theta and rope_scaling, or rope_parameters, which transformers 5
// writes.
#pragma once

#include "engine/hugging_face/fields.h"
#include "engine/model/config.h"

namespace shale {

// Sets rope_theta and rope_scaling of `config` from the top-level object `top` of a config.json. Adds errors for
// scalings other than llama3, partial rotation, settings that differ between layers, and two spellings that contradict
// each other. REQUIRES: config->max_positions is set.
void ReadHfRope(const HfFields& top, HfErrors& errors, DecoderConfig* config);

}  // namespace shale
