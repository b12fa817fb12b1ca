#include "engine/tokenize/added_vocabulary.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shale {
namespace {

absl::Status WrongToken(absl::string_view where, const Json& found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": found ", ShownJson(found), "; wanted ", wanted));
}

}  // namespace

absl::StatusOr<GivenToken> ReadGivenToken(const Json& json, absl::string_view where) {
  if (!json.is_object()) return WrongToken(where, json, R"(an object with "content")");
  GivenToken token;
  for (const auto& [name, value] : json.items()) {
    if (name == "content" && value.is_string()) {
      token.content = value.get<std::string>();
    } else if (name == "normalized" && value.is_boolean()) {
      token.normalized = value.get<bool>();
    } else if (value.is_boolean() &&
               (name == "single_word" || name == "lstrip" || name == "rstrip" || name == "special")) {
      (name == "single_word" ? token.single_word
       : name == "lstrip"    ? token.left_strip
       : name == "rstrip"    ? token.right_strip
                             : token.special) = value.get<bool>();
    } else if (name != "id" && name != "__type") {
      return WrongToken(absl::StrCat(where, ".", name), value,
                        "\"content\" and the flags single_word, lstrip, rstrip, normalized and special alone");
    }
  }
  if (token.content.empty()) return WrongToken(where, json, "a \"content\" that is not empty");
  return token;
}

int64_t AddedVocabulary::InModel(const std::string& content) const {
  if (!vocabulary_.is_object()) return -1;
  const auto found = vocabulary_.find(content);
  return found != vocabulary_.end() && found->is_number_unsigned() ? found->get<int64_t>() : -1;
}

int64_t AddedVocabulary::Id(const std::string& content) const {
  const auto found = ids_.find(content);
  return found != ids_.end() ? found->second : InModel(content);
}

void AddedVocabulary::Add(const std::vector<GivenToken>& tokens) {
  int64_t next = static_cast<int64_t>(vocabulary_.size());
  if (!tokens_.empty()) next = std::max(next, tokens_.rbegin()->first + 1);
  for (const GivenToken& token : tokens) {
    if (token.content.empty()) continue;
    int64_t id = Id(token.content);
    if (id < 0) id = next++;
    ids_[token.content] = id;
    if (token.special) special_.insert(token.content);
    tokens_[id] = token;
  }
}

Json AddedVocabulary::ToJson() const {
  Json list = Json::array();
  for (const auto& [id, token] : tokens_) {
    list.push_back({{"id", static_cast<uint64_t>(id)},  // JsonPart::Integer takes no others.
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.left_strip},
                    {"rstrip", token.right_strip},
                    {"normalized", token.is_normalized()},
                    {"special", special_.contains(token.content)}});
  }
  return list;
}

}  // namespace shale
