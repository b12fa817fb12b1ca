#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/compile/model/adapter.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/config_parts.h"
#include "engine/files/hugging_face/layout.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the names of the adapted modules, as the base model has them.
std::vector<std::string> ModulesOf(const HfLayout& layout) {
  std::vector<std::string> modules;
  for (const HfTensor& tensor : layout.tensors) {
    const std::string name = layout.FullName(tensor);
    absl::string_view module = name;
    if (absl::ConsumeSuffix(&module, ".lora_A.weight") && absl::ConsumePrefix(&module, "base_model.model.")) {
      modules.emplace_back(module);
    }
  }
  return modules;
}

std::string LastWord(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// PEFT adapts a module whose full name is listed, and all whose last word is. Lists words where each module with that
// word has an adapter.
absl::StatusOr<std::set<std::string>> TargetModules(const DecoderConfig& config) {
  AdapterConfig everywhere = *config.adapter;
  everywhere.targets = {"*"};
  DecoderConfig all = config;
  all.adapter = std::move(everywhere);
  SHALE_ASSIGN_OR_RETURN(const HfLayout layout, MakeHfAdapterLayout(config));
  SHALE_ASSIGN_OR_RETURN(const HfLayout layout_of_all, MakeHfAdapterLayout(all));
  std::map<std::string, int64_t> missing;  // By last word, how many modules have no adapter.
  for (const std::string& module : ModulesOf(layout_of_all)) ++missing[LastWord(module)];
  const std::vector<std::string> modules = ModulesOf(layout);
  for (const std::string& module : modules) --missing[LastWord(module)];
  std::set<std::string> targets;
  for (const std::string& module : modules) {
    const std::string word = LastWord(module);
    targets.insert(missing[word] == 0 ? word : module);
  }
  return targets;
}

// The keys of PEFT that are read below, and those that say nothing that the tensors and the job do not say: which
// layers have adapters, how these began, where the base came from, and how PEFT runs them. Any other key that is set,
// also one of a later PEFT, may change what the adapters compute.
constexpr absl::string_view kKnown[] = {"peft_type",
                                        "bias",
                                        "use_dora",
                                        "lora_bias",
                                        "use_qalora",
                                        "init_lora_weights",
                                        "r",
                                        "lora_alpha",
                                        "use_rslora",
                                        "lora_dropout",
                                        "auto_mapping",
                                        "base_model_name_or_path",
                                        "corda_config",
                                        "ensure_weight_tying",
                                        "eva_config",
                                        "exclude_modules",
                                        "fan_in_fan_out",
                                        "inference_mode",
                                        "layers_pattern",
                                        "layers_to_transform",
                                        "loftq_config",
                                        "lora_ga_config",

                                        "megatron_core",
                                        "peft_version",
                                        "qalora_group_size",
                                        "revision",
                                        "runtime_config",
                                        "target_modules",
                                        "task_type"};

// Returns whether a value is other than null, false, 0, and an empty string, list or object.
bool IsSet(const Json& value) {
  return !(value.is_null() || value == false || value == 0 || (value.is_string() && value == "") ||
           (value.is_structured() && value.empty()));
}

struct AdapterFile {
  std::string path;
  Json json;
};
absl::StatusOr<AdapterFile> ReadAdapterFile(const std::string& folder) {
  AdapterFile file;
  SHALE_ASSIGN_OR_RETURN(file.path, ResolveInFolder(folder, "adapter_config.json"));
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file.path, kMaxHfConfigBytes));
  absl::StatusOr<Json> json = ParseStrictJson(text);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(file.path, ": ", json.status().message()));
  file.json = *std::move(json);
  return file;
}

// Returns whether a list names a module as PEFT understands it: its full name, or what follows a dot in it.
bool Names(const Json& list, absl::string_view module) {
  return std::any_of(list.begin(), list.end(), [&](const Json& item) {
    if (!item.is_string()) return false;
    const auto name = item.get<std::string>();
    return name == module || absl::EndsWith(module, absl::StrCat(".", name));
  });
}

// Returns whether layers_to_transform, a number or a list, has the layer of a module: "model.layers.3.mlp.up_proj".
bool HasLayer(const Json& layers, const std::string& module) {
  for (const absl::string_view part : absl::StrSplit(module, '.')) {
    int64_t layer = 0;
    if (!absl::SimpleAtoi(part, &layer)) continue;
    return layers == layer || std::find(layers.begin(), layers.end(), Json(layer)) != layers.end();
  }
  return true;
}

// Returns the key by which PEFT leaves a module without an adapter, or nothing. Does not evaluate regular expressions,
// which stand in the place of lists: the tensors of the file say what they matched.
absl::string_view KeyThatLeavesOut(const Json& json, const std::string& module) {
  const auto targets = json.find("target_modules"), excluded = json.find("exclude_modules"),
             layers = json.find("layers_to_transform");
  if (targets != json.end() && targets->is_array() && !Names(*targets, module)) return "target_modules";
  if (excluded != json.end() && excluded->is_array() && Names(*excluded, module)) return "exclude_modules";
  if (layers != json.end() && !layers->is_null() && !HasLayer(*layers, module)) return "layers_to_transform";
  return "";
}

// Returns whether training began by taking the adapters out of the weights of the base, as PiSSA does. Such adapters
// belong to what then was left of the base, and not to the base as its folder has it.
bool ChangesTheBase(const HfFields& fields) {
  const Json* value = fields.Find("init_lora_weights");
  if (value == nullptr || !value->is_string()) return false;
  const auto initialization = value->get<std::string>();
  for (const char* changing : {"pissa", "corda", "olora", "loftq", "lora_ga"}) {
    if (absl::StartsWithIgnoreCase(initialization, changing)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::string> HfAdapterConfigText(const DecoderConfig& config, const std::string& base) {
  const AdapterConfig& adapter = *config.adapter;
  SHALE_ASSIGN_OR_RETURN(const HfModelType type, ChooseHfModelType(config));
  SHALE_ASSIGN_OR_RETURN(const std::set<std::string> targets, TargetModules(config));
  Json json = Json::object();
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = base.empty() ? Json() : Json(base);
  json["r"] = adapter.rank;
  json["lora_alpha"] = adapter.alpha;
  if (adapter.alpha == std::floor(adapter.alpha)) json["lora_alpha"] = static_cast<int64_t>(adapter.alpha);
  json["use_rslora"] = adapter.rank_stabilized;
  json["lora_dropout"] = 0.0;
  json["bias"] = "none";
  json["fan_in_fan_out"] = type == HfModelType::kGpt2;  // Its weights are stored as [in, out].
  json["target_modules"] = targets;
  json["modules_to_save"] = Json();
  json["inference_mode"] = true;
  return json.dump(2) + "\n";
}

absl::Status CheckHfAdapterModules(const std::string& folder, const DecoderConfig& config) {
  SHALE_ASSIGN_OR_RETURN(const AdapterFile file, ReadAdapterFile(folder));
  SHALE_ASSIGN_OR_RETURN(const HfLayout layout, MakeHfAdapterLayout(config));
  HfErrors errors(file.path);
  for (const std::string& module : ModulesOf(layout)) {
    if (const absl::string_view key = KeyThatLeavesOut(file.json, module); !key.empty()) {
      errors.Add(key, ShownJson(file.json[std::string(key)]),
                 absl::StrCat("what includes ", module, ", whose adapter PEFT ignores otherwise"));
    }
  }
  return errors.ToStatus();
}

absl::StatusOr<AdapterConfig> ReadHfAdapterConfig(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const AdapterFile file, ReadAdapterFile(folder));
  const Json* const json = &file.json;
  HfErrors errors(file.path);
  const HfFields fields(*json, "", errors);
  if (fields.StringOr("peft_type", "") != "LORA") fields.Refuse("peft_type", "LORA");
  if (fields.StringOr("bias", "none") != "none") fields.Refuse("bias", "none");
  fields.Demand("use_dora", /*allowed=*/false, /*absent=*/false, "the engine has plain adapters");
  fields.Demand("lora_bias", /*allowed=*/false, /*absent=*/false, "the engine's adapters have no bias");
  fields.Demand("use_qalora", /*allowed=*/false, /*absent=*/false, "the engine has plain adapters");
  for (const auto& [key, value] : json->items()) {
    if (IsSet(value) && std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      fields.Refuse(key, "nothing; the engine's adapters have no such setting");
    }
  }
  if (ChangesTheBase(fields)) fields.Refuse("init_lora_weights", "an initialization that leaves the base as it is");
  AdapterConfig config;
  config.rank = fields.Int("r", 1, 1 << 16);
  config.alpha = fields.Number("lora_alpha", 1e-6, 1e6);
  config.rank_stabilized = fields.BoolOr("use_rslora", false);
  ReadDropout(fields, AdapterDropoutKeys());  // Only checks the values.
  SHALE_RETURN_IF_ERROR(errors.ToStatus());
  return config;
}

}  // namespace shale
