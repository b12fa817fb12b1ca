// What the families share to write a config.json (engine/files/hugging_face/family.h).
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/compile/model/config.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/strict_json.h"

namespace shale {

// Writes the keys of `c` over those of a base, which `json` begins as. Erases keys that would contradict the written
// ones or mislead a reader.
struct HfConfigWriter {
  const DecoderConfig& c;
  const HfModelType type;
  const bool based;
  Json json;

  template <typename T>
  void Set(absl::string_view key, T value) {
    json[std::string(key)] = std::move(value);
  }
  void SetOrNull(absl::string_view key, double value) { value > 0 ? Set(key, value) : Set(key, nullptr); }
  void Erase(absl::string_view key) { json.erase(std::string(key)); }
  // Writes the name of the activation, which is a GELU.
  void WriteGelu(absl::string_view key, absl::string_view tanh_name);
  // Writes the rotary frequencies. Writes the older keys, whichever keys the base has, because every release of
  // transformers reads them, and releases before 5 read only them.
  void WriteRope();
  // Writes the kind of each layer: layer_types.
  void WriteLayerTypes();
};

}  // namespace shale
