#include "engine/text/tokenizer/tokenizer_class.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/strings/messages.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr char kHowToTakeTheFile[] =
    "set tokenizer_class to \"PreTrainedTokenizerFast\" in tokenizer_config.json, or name a folder that has neither "
    "tokenizer_class nor config.json (data.tokenizer), and tokenizer.json is read as it stands";
constexpr std::pair<TokenizerClass, absl::string_view> kSupported[] = {
    {TokenizerClass::kFile, "PreTrainedTokenizerFast"}, {TokenizerClass::kGpt2, "GPT2Tokenizer"},
    {TokenizerClass::kGptNeoX, "GPTNeoXTokenizer"},     {TokenizerClass::kLlama, "LlamaTokenizer"},
    {TokenizerClass::kQwen2, "Qwen2Tokenizer"},         {TokenizerClass::kGemma, "GemmaTokenizer"},
};

bool HasWord(absl::string_view words, absl::string_view word) {
  const std::vector<absl::string_view> all = absl::StrSplit(words, ' ');
  return std::find(all.begin(), all.end(), word) != all.end();
}

// Returns a member that is a string; "" if it is missing or null.
absl::StatusOr<std::string> StringIn(const Json& json, const char* file, const char* name) {
  const Json value = json.value(name, Json());
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", name, ": found ", ShownJson(value), "; wanted a string"));
}

// Returns the class with this name.
absl::StatusOr<TokenizerClass> ClassNamed(absl::string_view name) {
  name = absl::StripSuffix(name, "Fast");
  const auto found =
      std::find_if(kClassNames.begin(), kClassNames.end(), [&](const ClassName& known) { return known.name == name; });
  if (found == kClassNames.end()) return TokenizerClass::kFile;
  for (const auto& [supported, of] : kSupported) {
    if (of == found->means) return supported;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the class ", Quoted(name),
      " of transformers is not supported; supported: PreTrainedTokenizerFast, GPT2Tokenizer, GPTNeoXTokenizer, "
      "LlamaTokenizer, Qwen2Tokenizer, GemmaTokenizer; ",
      kHowToTakeTheFile));
}

// Returns whether transformers has a class with this name.
bool IsKnown(absl::string_view name) {
  constexpr absl::string_view kOfFile[] = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend",
                                           "MistralCommonBackend", "BloomTokenizer"};
  return std::find(std::begin(kOfFile), std::end(kOfFile), name) != std::end(kOfFile) ||
         std::any_of(kClassNames.begin(), kClassNames.end(),
                     [&](const ClassName& known) { return known.name == name; });
}

Json ByteLevel(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", use_regex}};
}

Json Sequence(const char* of, Json parts) { return {{"type", "Sequence"}, {of, std::move(parts)}}; }

// Returns a pre-tokenizer in one form: without what changes no token.
Json Plain(const Json& part) {
  if (!part.is_object()) return part;
  Json plain = part;
  plain.erase("trim_offsets");
  if (plain.value("type", Json()) == "ByteLevel") {
    for (const char* name : {"add_prefix_space", "use_regex"}) {
      if (!plain.contains(name)) plain[name] = true;
    }
  }
  if (plain.contains("pretokenizers") && plain["pretokenizers"].is_array()) {
    for (Json& inner : plain["pretokenizers"]) inner = Plain(inner);
    if (plain["pretokenizers"].size() == 1) return Json(plain["pretokenizers"][0]);
  }
  return plain;
}

// What a class makes of a file.
struct Parts {
  Json normalizer, pre_tokenizer, decoder = {{"type", "ByteLevel"}};
  bool fuse_unknown = false, byte_fallback = false;
};

absl::StatusOr<bool> FlagIn(const Json& config, const char* name, bool missing) {
  const Json value = config.value(name, Json());
  if (value.is_null()) return missing;
  if (value.is_boolean()) return value.get<bool>();
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer_config.json: ", name, ": found ", ShownJson(value), "; wanted true or false"));
}

// What turns tokens of bytes, and those with marks for spaces, into text.
Json MarkedBytes() {
  return {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}}};
}

Json MarkedSpaces() { return {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}; }

Parts LlamaParts(bool prefix, bool legacy) {
  Parts parts{.fuse_unknown = true, .byte_fallback = true};
  parts.pre_tokenizer = {{"type", "Metaspace"},
                         {"replacement", "▁"},
                         {"prepend_scheme", !prefix  ? "never"
                                            : legacy ? "always"
                                                     : "first"},
                         {"split", false}};
  Json decoders = MarkedBytes();
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1u}, {"stop", 0u}});
  parts.decoder = Sequence("decoders", std::move(decoders));
  return parts;
}

// Returns whether a file marks spaces as LlamaTokenizer does: with Metaspace, or, as files of older versions, with a
// normalizer. Both put a space before a text if `prefix`. They differ in whether text behind a special token gets one,
// too, which the class decides.
bool MarksSpaces(const Json& tokenizer, bool prefix) {
  const Json normalizer = tokenizer.value("normalizer", Json());
  const Json pre_tokenizer = Plain(tokenizer.value("pre_tokenizer", Json()));
  const Json replace = MarkedSpaces();
  const Json prepend = {{"type", "Prepend"}, {"prepend", "▁"}};
  if (pre_tokenizer.is_null()) {
    if (prefix) return normalizer == Sequence("normalizers", Json::array({prepend, replace}));
    return normalizer == replace || normalizer == Sequence("normalizers", Json::array({replace}));
  }
  return normalizer.is_null() && pre_tokenizer.is_object() && pre_tokenizer.value("type", Json()) == "Metaspace" &&
         pre_tokenizer.value("replacement", Json()) == "▁" && pre_tokenizer.value("split", Json(true)) == false &&
         (pre_tokenizer.value("prepend_scheme", Json("always")) != "never") == prefix;
}

Parts GemmaParts() {
  Parts parts{.normalizer = MarkedSpaces(), .fuse_unknown = true, .byte_fallback = true};
  parts.pre_tokenizer = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  parts.decoder = Sequence("decoders", MarkedBytes());
  return parts;
}

// Returns whether a file normalizes and splits as GemmaTokenizer does. No space is left for its pre-tokenizer.
bool SplitsLikeGemma(const Json& tokenizer) {
  const Json normalizer = tokenizer.value("normalizer", Json());
  const Json pre_tokenizer = Plain(tokenizer.value("pre_tokenizer", Json()));
  return (normalizer == MarkedSpaces() || normalizer == Sequence("normalizers", Json::array({MarkedSpaces()}))) &&
         (pre_tokenizer.is_null() || pre_tokenizer == GemmaParts().pre_tokenizer);
}

absl::StatusOr<Parts> PartsOf(TokenizerClass tokenizer_class, const Json& config) {
  if (tokenizer_class == TokenizerClass::kLlama) {
    SHALE_ASSIGN_OR_RETURN(const bool prefix, FlagIn(config, "add_prefix_space", true));
    SHALE_ASSIGN_OR_RETURN(const bool legacy, FlagIn(config, "legacy", false));
    return LlamaParts(prefix, legacy);
  }
  if (tokenizer_class == TokenizerClass::kGemma) return GemmaParts();
  if (tokenizer_class != TokenizerClass::kQwen2 && config.contains("add_prefix_space") &&
      config["add_prefix_space"].is_null()) {
    return absl::InvalidArgumentError("tokenizer_config.json: add_prefix_space: found null; wanted true or false");
  }
  SHALE_ASSIGN_OR_RETURN(const bool prefix, FlagIn(config, "add_prefix_space", false));
  Parts parts{.pre_tokenizer = ByteLevel(prefix, /*use_regex=*/true)};
  if (tokenizer_class != TokenizerClass::kGpt2) parts.normalizer = {{"type", "NFC"}};
  if (tokenizer_class == TokenizerClass::kQwen2) {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", std::string(kQwen2Pattern)}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    parts.pre_tokenizer = Sequence("pretokenizers", Json::array({split, ByteLevel(prefix, /*use_regex=*/false)}));
  }
  return parts;
}

}  // namespace

absl::string_view NameOf(TokenizerClass tokenizer_class) {
  for (const auto& [supported, name] : kSupported) {
    if (supported == tokenizer_class) return name;
  }
  return "?";
}

std::vector<std::pair<std::string, Json>> DefaultTokens(TokenizerClass tokenizer_class) {
  constexpr char kEnd[] = "<|endoftext|>";
  switch (tokenizer_class) {
    case TokenizerClass::kFile: return {};
    case TokenizerClass::kGpt2:
      return {{"unk_token", kEnd}, {"bos_token", kEnd}, {"eos_token", kEnd}, {"pad_token", nullptr}};
    case TokenizerClass::kGptNeoX:
      return {{"unk_token", kEnd}, {"bos_token", kEnd}, {"eos_token", kEnd}, {"pad_token", "<|padding|>"}};
    case TokenizerClass::kLlama: return {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
    case TokenizerClass::kGemma:
      return {{"unk_token", "<unk>"},
              {"bos_token", "<bos>"},
              {"eos_token", "<eos>"},
              {"pad_token", "<pad>"},
              {"mask_token", "<mask>"}};
    case TokenizerClass::kQwen2:
      return {{"unk_token", kEnd}, {"bos_token", nullptr}, {"eos_token", kEnd}, {"pad_token", kEnd}};
  }
  return {};
}

absl::StatusOr<TokenizerClass> FindTokenizerClass(const Json& tokenizer_config, const Json& config, bool byte_level) {
  const Json auto_map = tokenizer_config.value("auto_map", Json());
  if (auto_map.is_array() || (auto_map.is_object() && !auto_map.value("AutoTokenizer", Json()).is_null())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer_config.json: auto_map: the tokenizer has code of its own, which Shale does not run; if "
                     "tokenizer.json "
                     "alone gives the right tokens, remove auto_map and ",
                     kHowToTakeTheFile));
  }
  SHALE_ASSIGN_OR_RETURN(const std::string of_tokenizer,
                         StringIn(tokenizer_config, "tokenizer_config.json", "tokenizer_class"));
  SHALE_ASSIGN_OR_RETURN(const std::string of_model, StringIn(config, "config.json", "tokenizer_class"));
  SHALE_ASSIGN_OR_RETURN(const std::string type, StringIn(config, "config.json", "model_type"));
  SHALE_ASSIGN_OR_RETURN(const std::string model_name, StringIn(config, "config.json", "model_name"));
  const absl::string_view named = absl::StripSuffix(of_tokenizer.empty() ? of_model : of_tokenizer, "Fast");
  const auto registered = std::find_if(kTypesOfClasses.begin(), kTypesOfClasses.end(),
                                       [&](const TypesOfClass& of) { return HasWord(of.types, type); });
  const bool is_registered = !type.empty() && registered != kTypesOfClasses.end();
  const bool named_wrongly = (!type.empty() && HasWord(kTypesWithWrongClass, type)) ||
                             (!model_name.empty() && HasWord(kTypesWithWrongClass, model_name));
  // Many folders of byte-level tokenizers name LlamaTokenizer, which has no bytes.
  if (named == "LlamaTokenizer" && byte_level && !named_wrongly) return TokenizerClass::kFile;
  absl::StatusOr<TokenizerClass> found = TokenizerClass::kFile;
  if (!named.empty() && (!is_registered || registered->name == named)) {
    found = ClassNamed(named);
    if (of_tokenizer.empty() && !IsKnown(named)) {
      found = absl::InvalidArgumentError(absl::StrCat("transformers has no class ", Quoted(named)));
    }
  } else if (!named.empty() && !registered->name.empty()) {
    found = ClassNamed(named_wrongly ? registered->name : named);
  } else if (named.empty() && is_registered && !registered->name.empty()) {
    found = ClassNamed(registered->name);
  }
  if (found.ok()) return found;
  const char* where = !of_tokenizer.empty() ? "tokenizer_config.json: tokenizer_class: "
                      : !of_model.empty()   ? "config.json: tokenizer_class: "
                                            : "config.json: model_type: ";
  return absl::InvalidArgumentError(absl::StrCat(where, found.status().message()));
}

absl::Status ApplyTokenizerClass(TokenizerClass tokenizer_class, const Json& tokenizer_config, Json* tokenizer) {
  if (tokenizer_class == TokenizerClass::kFile) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(Parts parts, PartsOf(tokenizer_class, tokenizer_config));
  const Json model = tokenizer->value("model", Json());
  if (!model.is_object() || model.value("type", Json("BPE")) != "BPE") return absl::OkStatus();  // BpeModel refuses it.
  const bool is_llama = tokenizer_class == TokenizerClass::kLlama, is_gemma = tokenizer_class == TokenizerClass::kGemma;
  const bool splits_alike = is_llama   ? MarksSpaces(*tokenizer, parts.pre_tokenizer["prepend_scheme"] != "never")
                            : is_gemma ? SplitsLikeGemma(*tokenizer)
                                       : Plain(tokenizer->value("pre_tokenizer", Json())) == Plain(parts.pre_tokenizer);
  absl::string_view what = splits_alike ? "" : is_llama || is_gemma ? "normalizer or pre_tokenizer" : "pre_tokenizer";
  if (model.value("ignore_merges", Json()) == true) what = "model.ignore_merges";
  if (!what.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer.json: ", what, ": the file splits text by other rules than the class ", NameOf(tokenizer_class),
        ", which transformers takes for this folder, and which ignores the rules of the file; ", kHowToTakeTheFile));
  }
  Json made = {{"type", "BPE"},
               {"vocab", model.value("vocab", Json())},
               {"merges", model.value("merges", Json())},
               {"fuse_unk", parts.fuse_unknown},
               {"byte_fallback", parts.byte_fallback}};
  (*tokenizer)["model"] = std::move(made);
  (*tokenizer)["normalizer"] = std::move(parts.normalizer);
  (*tokenizer)["pre_tokenizer"] = std::move(parts.pre_tokenizer);
  (*tokenizer)["decoder"] = std::move(parts.decoder);
  if (tokenizer_class == TokenizerClass::kGptNeoX) (*tokenizer)["post_processor"] = nullptr;
  return absl::OkStatus();
}

}  // namespace shale
