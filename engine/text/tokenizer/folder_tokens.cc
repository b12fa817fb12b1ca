#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/strings/messages.h"
#include "engine/text/tokenizer/tokenizer_folder.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kStandardNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                "pad_token", "cls_token", "mask_token"};
// Members by which transformers takes another file, or another tokenizer than that of tokenizer.json.
constexpr const char* kRefusedMembers[] = {"fast_tokenizer_files",
                                           "fix_mistral_regex",
                                           "gguf_file",
                                           "init_inputs",
                                           "merges",
                                           "model_specific_special_tokens",
                                           "post_processor",
                                           "tokenizer_object",
                                           "tokenizer_padding",
                                           "tokenizer_truncation",
                                           "vocab"};
constexpr size_t kMaxNames = 1024;
constexpr char kConfig[] = "tokenizer_config.json";
constexpr char kMap[] = "special_tokens_map.json";
constexpr char kAdded[] = "added_tokens.json";
constexpr char kExtra[] = "extra_special_tokens";
constexpr char kAdditional[] = "additional_special_tokens";

using NamedToken = std::pair<std::string, GivenToken>;

absl::Status Wrong(absl::string_view where, const Json& found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": found ", ShownJson(found), "; wanted ", wanted));
}

bool IsStandard(absl::string_view name) {
  return std::find(std::begin(kStandardNames), std::end(kStandardNames), name) != std::end(kStandardNames);
}

// Returns whether Python takes a value for true.
bool IsTrue(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value != 0;
  return value.is_string() ? value != "" : !value.empty();
}

GivenToken FromText(const std::string& content) {
  return {.content = content, .special = true, .normalized = false, .is_text = true};
}

// Reads a token that is a string or an AddedToken ({"__type": "AddedToken", ...}).
absl::StatusOr<GivenToken> ReadToken(const Json& json, const std::string& where, bool needs_type) {
  if (json.is_string() && json != "") return FromText(json.get<std::string>());
  if (!json.is_object() || (needs_type && json.value("__type", Json()) != "AddedToken")) {
    return Wrong(where, json, R"(a token: a string, or an object with "__type": "AddedToken" and "content")");
  }
  return ReadGivenToken(json, where);
}

// Sets a name, which keeps its place if it exists.
void Set(const std::string& name, GivenToken token, std::vector<NamedToken>* tokens) {
  const auto found =
      std::find_if(tokens->begin(), tokens->end(), [&](const NamedToken& known) { return known.first == name; });
  if (found == tokens->end()) {
    tokens->emplace_back(name, std::move(token));
  } else {
    found->second = std::move(token);
  }
}

class Collector {
 public:
  Collector(const TokenFilesOfFolder& files, TokenizerClass tokenizer_class) : files_(files), class_(tokenizer_class) {}

  absl::StatusOr<FolderTokens> Collect() {
    const Json& config = files_.tokenizer_config.json;
    for (const auto& [file, names] :
         {std::pair(kConfig, &files_.tokenizer_config.names), std::pair(kConfig, &files_.extra_names),
          std::pair(kMap, &files_.special_tokens_map.names)}) {
      if (names->size() > kMaxNames) {
        return absl::InvalidArgumentError(absl::StrCat(file, ": more than ", kMaxNames, " members are not supported"));
      }
    }
    for (const char* name : kRefusedMembers) {
      if (IsTrue(config.value(name, Json()))) {
        return absl::InvalidArgumentError(absl::StrCat(kConfig, ": ", name, " is not supported"));
      }
    }
    if (IsTrue(config.value("split_special_tokens", Json()))) {
      return absl::InvalidArgumentError(
          absl::StrCat(kConfig, ": split_special_tokens is not supported: special tokens would be text"));
    }
    SHALE_RETURN_IF_ERROR(ReadConfig());
    if (config.contains("added_tokens_decoder")) {
      SHALE_RETURN_IF_ERROR(ReadDecoder(config["added_tokens_decoder"]));
    } else {
      SHALE_RETURN_IF_ERROR(ReadMap());
      SHALE_RETURN_IF_ERROR(ReadAddedTokensFile());
      SHALE_RETURN_IF_ERROR(ReadOwnTokens());
    }
    return Name();
  }

 private:
  absl::StatusOr<std::vector<GivenToken>> ReadList(const Json& json, const std::string& where, bool needs_type) {
    if (!json.is_array()) return Wrong(where, json, "a list of tokens");
    std::vector<GivenToken> tokens;
    for (const Json& element : json) {
      SHALE_ASSIGN_OR_RETURN(GivenToken token, ReadToken(element, where, needs_type));
      if (!needs_type && !token.is_text) token.special = true;
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  absl::Status ReadExtraDict(const Json& json, const std::string& where, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      SHALE_ASSIGN_OR_RETURN(GivenToken token, ReadToken(json[name], absl::StrCat(where, ".", name), true));
      Set(name, std::move(token), &explicit_);
    }
    return absl::OkStatus();
  }

  absl::Status ReadConfig() {
    const OrderedObject& config = files_.tokenizer_config;
    for (const std::string& name : config.names) {
      const Json& value = config.json[name];
      const std::string where = absl::StrCat(kConfig, ": ", name);
      if (IsStandard(name)) {
        given_[name] = std::nullopt;
        if (value.is_null()) continue;
        SHALE_ASSIGN_OR_RETURN(given_[name], ReadToken(value, where, /*needs_type=*/false));
        if (value.is_string()) texts_[name] = value.get<std::string>();
      } else if (absl::EndsWith(name, "_token") && value.is_string()) {
        SHALE_ASSIGN_OR_RETURN(GivenToken token, ReadToken(value, where, true));
        Set(name, std::move(token), &explicit_);
      } else if (absl::EndsWith(name, "_token") && value.is_object()) {
        SHALE_ASSIGN_OR_RETURN(GivenToken token, ReadToken(value, where, true));
        Set(name, std::move(token), &automatic_);
      }
    }
    Json extra = config.json.value(kExtra, Json());
    std::string where = absl::StrCat(kConfig, ": ", kExtra);
    has_extra_ = config.json.contains(kExtra);
    if (config.json.contains(kAdditional)) {
      if (!IsTrue(extra)) {
        extra = config.json[kAdditional];
        where = absl::StrCat(kConfig, ": ", kAdditional);
        has_extra_ = true;
      } else if (!config.json[kAdditional].is_null()) {
        SHALE_ASSIGN_OR_RETURN(additional_,
                               ReadList(config.json[kAdditional], absl::StrCat(kConfig, ": ", kAdditional), true));
      }
    }
    if (extra.is_object()) {
      has_extra_ = false;
      return ReadExtraDict(extra, where, files_.extra_names);
    }
    if (!extra.is_null()) {
      SHALE_ASSIGN_OR_RETURN(extra_, ReadList(extra, where, true));
      for (const GivenToken& token : extra_) {
        if (token.is_text) extra_texts_.insert(token.content);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadMap() {
    const OrderedObject& map = files_.special_tokens_map;
    for (const std::string& name : map.names) {
      const Json& value = map.json[name];
      const std::string where = absl::StrCat(kMap, ": ", name);
      if (name == kExtra && value.is_object()) {
        std::vector<std::string> names;
        for (const auto& [token_name, token] : value.items()) names.push_back(token_name);
        if (names.size() > 1) return Wrong(where, value, "a list, or one name");
        has_extra_ = false;
        extra_.clear();
        SHALE_RETURN_IF_ERROR(ReadExtraDict(value, where, names));
      } else if (name == kExtra || name == kAdditional) {
        std::vector<GivenToken> tokens;
        if (!value.is_null()) {
          SHALE_ASSIGN_OR_RETURN(tokens, ReadList(value, where, /*needs_type=*/name == kAdditional));
        }
        if (name == kAdditional) {
          additional_ = std::move(tokens);
          continue;
        }
        has_extra_ = true;
        std::set<std::string> listed;
        for (const GivenToken& token : extra_) {
          if (token.is_text) listed.insert(token.content);
        }
        for (GivenToken& token : tokens) {
          extra_texts_.insert(token.content);
          const bool known = token.is_text && !listed.insert(token.content).second;
          if (!known) extra_.push_back(std::move(token));
        }
      } else if (IsStandard(name) && value.is_null()) {
        given_[name] = std::nullopt;
        texts_.erase(name);
      } else if (absl::EndsWith(name, "_token") && value.is_null()) {
        continue;
      } else if (IsStandard(name) || absl::EndsWith(name, "_token")) {
        SHALE_ASSIGN_OR_RETURN(GivenToken token, ReadToken(value, where, /*needs_type=*/false));
        token.special = true;
        if (IsStandard(name)) {
          texts_[name] = token.content;
          given_[name] = std::move(token);
        } else {
          Set(name, std::move(token), &automatic_);
        }
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat(where, " is not supported; allowed are tokens (*_token), ", kAdditional, " and ", kExtra));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadDecoder(const Json& decoder) {
    const std::string where = absl::StrCat(kConfig, ": added_tokens_decoder");
    if (!decoder.is_object()) return Wrong(where, decoder, "an object from ids to tokens");
    for (const auto& [id, token] : decoder.items()) {
      int64_t number = 0;
      if (!absl::SimpleAtoi(id, &number) || number < 0) return Wrong(where, id, "an id");
      SHALE_ASSIGN_OR_RETURN(decoder_[number], ReadGivenToken(token, absl::StrCat(where, ".", id)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokensFile() {
    // In transformers, a token that tokenizer_config.json gives as an object is not yet a token here.
    const auto is_special = [&](const std::string& content) {
      return extra_texts_.contains(content) ||
             std::any_of(texts_.begin(), texts_.end(), [&](const auto& named) { return named.second == content; });
    };
    for (const auto& [content, id] : files_.added_tokens.json.items()) {
      const bool fits = id.is_number_unsigned() && id.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
      if (!fits || content.empty()) {
        return Wrong(absl::StrCat(kAdded, ": ", ShortJsonQuote(content)), id, "an id for a token");
      }
      const bool special = is_special(content);
      decoder_[id.get<int64_t>()] = {.content = content, .special = special, .normalized = !special};
    }
    return absl::OkStatus();
  }

  absl::Status ReadOwnTokens() {
    if (!files_.own_added_tokens.is_array()) return absl::OkStatus();
    for (const Json& token : files_.own_added_tokens) {
      const Json id = token.is_object() ? token.value("id", Json()) : Json();
      if (!id.is_number_unsigned()) return Wrong("tokenizer.json: added_tokens", token, "a token with an id");
      SHALE_ASSIGN_OR_RETURN(decoder_[id.get<int64_t>()], ReadGivenToken(token, "tokenizer.json: added_tokens"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<FolderTokens> Name() {
    for (const auto& [name, value] : DefaultTokens(class_)) {
      if (given_.contains(name)) continue;
      given_[name] = std::nullopt;
      if (value.is_string()) given_[name] = FromText(value.get<std::string>());
    }
    if (files_.padding.is_object() && !given_.contains("pad_token")) {
      SHALE_ASSIGN_OR_RETURN(given_["pad_token"], ReadToken(files_.padding.value("pad_token", Json("[PAD]")),
                                                            "tokenizer.json: padding.pad_token", true));
    }
    FolderTokens tokens;
    for (const absl::string_view name : kStandardNames) {
      const auto found = given_.find(std::string(name));
      if (found != given_.end() && found->second) tokens.named.emplace_back(name, *found->second);
    }
    for (const auto* more : {&automatic_, &explicit_}) {
      for (const auto& [name, token] : *more) Set(name, token, &tokens.named);
    }
    tokens.others = !has_extra_ && additional_ ? *additional_ : extra_;
    tokens.decoder = std::move(decoder_);
    return tokens;
  }

  const TokenFilesOfFolder& files_;
  const TokenizerClass class_;
  std::map<std::string, std::string> texts_;  // Contents by standard name, but for those that are objects in the file.
  std::set<std::string> extra_texts_;         // The same for `extra_`.
  std::map<std::string, std::optional<GivenToken>> given_;  // By standard name. Null if a file says that there is none.
  // Tokens with other names. The places of the former come first.
  std::vector<NamedToken> automatic_, explicit_;
  bool has_extra_ = false;  // Whether there is a list "extra_special_tokens", so that `additional_` does not count.
  std::vector<GivenToken> extra_;
  std::optional<std::vector<GivenToken>> additional_;
  std::map<int64_t, GivenToken> decoder_;
};

}  // namespace

absl::StatusOr<OrderedObject> ParseOrdered(absl::string_view text, std::vector<std::string>* extra_names) {
  OrderedObject object;
  SHALE_RETURN_IF_ERROR(ParseStrictJson(text).status());
  const auto note = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (event != Json::parse_event_t::key) return true;
    if (depth == 1) object.names.push_back(parsed.get<std::string>());
    if (depth == 2 && extra_names != nullptr && object.names.back() == kExtra) {
      extra_names->push_back(parsed.get<std::string>());
    }
    return true;
  };
  object.json = Json::parse(text.begin(), text.end(), note, /*allow_exceptions=*/false);
  return object;
}

absl::StatusOr<FolderTokens> ReadFolderTokens(const TokenFilesOfFolder& files, TokenizerClass tokenizer_class) {
  return Collector(files, tokenizer_class).Collect();
}

}  // namespace shale
