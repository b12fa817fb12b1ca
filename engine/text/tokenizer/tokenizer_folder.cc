#include "engine/text/tokenizer/tokenizer_folder.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "engine/text/tokenizer/added_tokens.h"
#include "engine/text/tokenizer/tokenizer_class.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxSettingBytes = int64_t{1} << 28;

// Returns the object in a file; an empty one if there is no file.
absl::StatusOr<OrderedObject> ReadSettings(const std::string& folder, const char* name,
                                           std::vector<std::string>* extra_names = nullptr) {
  const absl::StatusOr<std::string> text = ReadFile(JoinPath(folder, name), kMaxSettingBytes);
  if (absl::IsNotFound(text.status())) return OrderedObject();
  SHALE_RETURN_IF_ERROR(text.status());
  absl::StatusOr<OrderedObject> object = ParseOrdered(*text, extra_names);
  if (object.ok()) return object;
  return absl::InvalidArgumentError(absl::StrCat(JoinPath(folder, name), ": ", object.status().message()));
}

// Adds the name of the folder to an error that begins with the name of a file.
absl::Status In(const std::string& folder, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), JoinPath(folder, std::string(status.message())));
}

struct Settings {
  TokenFilesOfFolder files;
  TokenizerClass tokenizer_class = TokenizerClass::kFile;
};

// Reads everything but tokenizer.json, of which it gets the text.
absl::StatusOr<Settings> ReadAllSettings(const std::string& folder, const std::string& tokenizer) {
  Settings settings;
  TokenFilesOfFolder& files = settings.files;
  SHALE_ASSIGN_OR_RETURN(files.tokenizer_config, ReadSettings(folder, "tokenizer_config.json", &files.extra_names));
  SHALE_ASSIGN_OR_RETURN(files.special_tokens_map, ReadSettings(folder, "special_tokens_map.json"));
  SHALE_ASSIGN_OR_RETURN(files.added_tokens, ReadSettings(folder, "added_tokens.json"));
  SHALE_ASSIGN_OR_RETURN(const OrderedObject config, ReadSettings(folder, "config.json"));
  const absl::StatusOr<TokenizerClass> found =
      FindTokenizerClass(files.tokenizer_config.json, config.json, absl::StrContains(tokenizer, "\"ByteLevel\""));
  SHALE_RETURN_IF_ERROR(In(folder, found.status()));
  settings.tokenizer_class = *found;
  return settings;
}

// Returns whether Python takes two tokens in a list for the same.
bool SameInPython(const GivenToken& a, const GivenToken& b) {
  return a.is_text == b.is_text && a.content == b.content &&
         (a.is_text ||
          (a.single_word == b.single_word && a.left_strip == b.left_strip && a.right_strip == b.right_strip &&
           a.special == b.special && a.is_normalized() == b.is_normalized()));
}

// Adds tokens in the order of TokenizersBackend.__init__.
void AddTokens(const FolderTokens& tokens, TokenizerClass tokenizer_class, AddedVocabulary& vocabulary) {
  std::vector<GivenToken> added;
  absl::flat_hash_set<std::string> of_decoder, names;
  absl::flat_hash_map<std::string, std::vector<GivenToken>> more;
  for (const auto& [id, token] : tokens.decoder) {
    of_decoder.insert(token.content);
    added.push_back(token);
  }
  const auto add = [&](const GivenToken& token) {
    if (vocabulary.Has(token.content) || of_decoder.contains(token.content)) return;
    std::vector<GivenToken>& same = more[token.content];
    const auto is_same = [&](const GivenToken& other) { return SameInPython(other, token); };
    if (std::any_of(same.begin(), same.end(), is_same)) return;
    same.push_back(token);
    added.push_back(token);
  };
  for (const auto& [name, token] : tokens.named) {
    names.insert(token.content);
    add(token);
  }
  for (const GivenToken& token : tokens.others) add(token);
  for (GivenToken& token : added) token.special = token.special || names.contains(token.content);
  vocabulary.Add(added);
  if (tokenizer_class != TokenizerClass::kQwen2) return;
  // This class adds its special tokens once more, without their flags.
  std::vector<GivenToken> again;
  for (const auto& [name, token] : tokens.named) again.push_back({.content = token.content, .special = true});
  for (const GivenToken& token : tokens.others) again.push_back({.content = token.content, .special = true});
  vocabulary.Add(again);
}

SpecialTokens NamesOf(const FolderTokens& tokens) {
  SpecialTokens names;
  for (const auto& [name, token] : tokens.named) names.emplace_back(name, token.content);
  return names;
}

// Reads "added_tokens" of a tokenizer.json whose class reads it as it stands. Refuses ids that the library would
// ignore.
absl::Status AddOwnTokens(const Json& own, AddedVocabulary& vocabulary) {
  if (!own.is_array()) return absl::OkStatus();
  std::vector<GivenToken> tokens;
  for (const Json& json : own) {
    SHALE_ASSIGN_OR_RETURN(GivenToken token, ReadGivenToken(json, "tokenizer.json: added_tokens"));
    if (!token.normalized) token.normalized = true;  // As AddedTokens::Read does.
    tokens.push_back(std::move(token));
  }
  vocabulary.Add(tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t id = vocabulary.Id(tokens[i].content);
    if (own[i].value("id", Json()) == id) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer.json: added_tokens[", i, "]: id: found ", ShownJson(own[i].value("id", Json())), " for ",
        ShownJson(tokens[i].content), "; wanted ", id, ", which the vocabulary and the tokens before it give"));
  }
  return absl::OkStatus();
}

absl::StatusOr<FolderTokenizer> Resolve(const std::string& folder, const std::string& text) {
  SHALE_ASSIGN_OR_RETURN(Settings settings, ReadAllSettings(folder, text));
  FolderTokenizer result;
  absl::StatusOr<Json> tokenizer = ParseStrictJson(text);
  if (!tokenizer.ok()) {
    return In(folder, absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", tokenizer.status().message())));
  }
  result.tokenizer = *std::move(tokenizer);
  settings.files.own_added_tokens = result.tokenizer.value("added_tokens", Json());
  settings.files.padding = result.tokenizer.value("padding", Json());
  SHALE_RETURN_IF_ERROR(In(
      folder, ApplyTokenizerClass(settings.tokenizer_class, settings.files.tokenizer_config.json, &result.tokenizer)));
  const absl::StatusOr<FolderTokens> tokens = ReadFolderTokens(settings.files, settings.tokenizer_class);
  SHALE_RETURN_IF_ERROR(In(folder, tokens.status()));
  static const Json& kNone = *new Json;
  const auto member = [](const Json& json, const char* name) -> const Json& {
    return json.is_object() && json.contains(name) ? json[name] : kNone;
  };
  AddedVocabulary vocabulary(member(member(result.tokenizer, "model"), "vocab"));
  if (settings.tokenizer_class == TokenizerClass::kFile) {
    SHALE_RETURN_IF_ERROR(In(folder, AddOwnTokens(settings.files.own_added_tokens, vocabulary)));
  }
  AddTokens(*tokens, settings.tokenizer_class, vocabulary);
  result.tokenizer["added_tokens"] = vocabulary.ToJson();
  result.special_tokens = NamesOf(*tokens);
  return result;
}

}  // namespace

absl::StatusOr<FolderTokenizer> ReadFolderTokenizer(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(JoinPath(folder, "tokenizer.json"), kMaxSettingBytes));
  return Resolve(folder, text);
}

absl::StatusOr<std::string> TokenizerConfigWithClass(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::string tokenizer, ReadFile(JoinPath(folder, "tokenizer.json"), kMaxSettingBytes));
  SHALE_ASSIGN_OR_RETURN(const Settings settings, ReadAllSettings(folder, tokenizer));
  const absl::StatusOr<std::string> text = ReadFile(JoinPath(folder, "tokenizer_config.json"), kMaxSettingBytes);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  // ReadAllSettings has parsed it. The order of its members decides ids, and is kept.
  nlohmann::ordered_json config = text.ok() ? nlohmann::ordered_json::parse(*text) : nlohmann::ordered_json::object();
  nlohmann::ordered_json& named = config["tokenizer_class"];
  if (named.is_string() && named != "") return *text;
  named = std::string(NameOf(settings.tokenizer_class));
  return config.dump(2) + "\n";
}

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& folder) {
  absl::StatusOr<std::string> text = ReadFile(JoinPath(folder, "tokenizer.json"), kMaxSettingBytes);
  if (absl::IsNotFound(text.status())) text = "{}";
  SHALE_RETURN_IF_ERROR(text.status());
  SHALE_ASSIGN_OR_RETURN(Settings settings, ReadAllSettings(folder, *text));
  // Most files have no padding, and take long to parse.
  if (absl::StrContains(*text, "\"pad_token\"")) {
    const absl::StatusOr<Json> tokenizer = ParseStrictJson(*text);
    if (tokenizer.ok()) settings.files.padding = tokenizer->value("padding", Json());
  }
  const absl::StatusOr<FolderTokens> tokens = ReadFolderTokens(settings.files, settings.tokenizer_class);
  SHALE_RETURN_IF_ERROR(In(folder, tokens.status()));
  return NamesOf(*tokens);
}

}  // namespace shale
