#include "engine/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Of a content and of its normal form. A search may look at so many bytes behind each byte of a text.
constexpr size_t kMaxContentBytes = 512;
// Of all contents and normal forms together, each byte of which takes up to about 50 bytes of memory.
constexpr size_t kMaxAllBytes = size_t{1} << 22;

bool IsClass(uint32_t code, CharacterClass wanted) { return (CharacterClasses::Get().Of(code) & wanted) != 0; }

// Returns where the white space at the end of `text` begins.
size_t SpaceAtEnd(absl::string_view text) {
  while (!text.empty()) {
    const uint32_t code = LastCharacter(text);
    if (!IsClass(code, kSpace)) break;
    text.remove_suffix(code < 0x80 ? 1 : code < 0x800 ? 2 : 3);
  }
  return text.size();
}

// Returns where the white space at the beginning of `text` ends.
size_t SpaceAtBegin(absl::string_view text) {
  const char* at = text.data();
  while (at < text.data() + text.size()) {
    const char* next = at;
    if (!IsClass(NextCharacter(&next), kSpace)) break;
    at = next;
  }
  return at - text.data();
}

bool BeginsWithWord(absl::string_view text) {
  const char* at = text.data();
  return !text.empty() && IsClass(NextCharacter(&at), kWord);
}

bool EndsWithWord(absl::string_view text) { return !text.empty() && IsClass(LastCharacter(text), kWord); }

absl::Status WrongToken(absl::string_view where, const Json& found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": found ", ShownJson(found), "; wanted ", wanted));
}

}  // namespace

bool AddedTokens::Trie::Add(absl::string_view text, int32_t token) {
  if (nodes.empty()) nodes.emplace_back();
  begins[static_cast<uint8_t>(text[0])] = true;
  int32_t node = 0;
  for (const char c : text) {
    const auto [found, fresh] = next.emplace(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c), nodes.size());
    if (fresh) nodes.emplace_back();
    node = found->second;
  }
  return std::exchange(nodes[node].token, token) < 0;
}

int32_t AddedTokens::Trie::Longest(absl::string_view text, size_t* bytes) const {
  int32_t node = 0, longest = -1;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto found = next.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
    if (found == next.end()) break;
    node = found->second;
    if (nodes[node].token >= 0) {
      longest = nodes[node].token;
      *bytes = i + 1;
    }
  }
  return longest;
}

absl::StatusOr<AddedTokens> AddedTokens::Read(const JsonPart& part, const BpeModel& model,
                                              const Normalizer& normalizer) {
  AddedTokens added;
  if (part.is_null()) return added;
  SHALE_ASSIGN_OR_RETURN(const std::vector<JsonPart> elements, part.Elements());
  int64_t next = model.size();
  size_t bytes = 0;
  TextBudget budget(kMaxContentBytes);
  for (const JsonPart& element : elements) {
    SHALE_RETURN_IF_ERROR(element.Check({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    AddedToken token;
    SHALE_ASSIGN_OR_RETURN(const int64_t id, element.Integer("id"));
    SHALE_ASSIGN_OR_RETURN(token.content, element.Text("content"));
    SHALE_ASSIGN_OR_RETURN(token.single_word, element.Flag("single_word", false));
    SHALE_ASSIGN_OR_RETURN(token.left_strip, element.Flag("lstrip", false));
    SHALE_ASSIGN_OR_RETURN(token.right_strip, element.Flag("rstrip", false));
    SHALE_ASSIGN_OR_RETURN(token.normalized, element.Flag("normalized", true));
    SHALE_ASSIGN_OR_RETURN(token.special, element.Flag("special", false));
    if (token.content.empty() || token.content.size() > kMaxContentBytes) {
      return element.Error(absl::StrCat("content: wanted 1 to ", kMaxContentBytes, " bytes"));
    }
    if (added.by_content_.contains(token.content)) {
      return element.Error(absl::StrCat("the content ", ShownJson(token.content), " occurs twice"));
    }
    const int32_t in_model = model.Find(token.content);
    const int64_t given = in_model >= 0 ? in_model : next++;
    if (id != given) {
      return element.Error(absl::StrCat("id: found ", id, " for ", ShownJson(token.content), "; wanted ", given,
                                        ", which the vocabulary and the tokens before it give"));
    }
    token.id = static_cast<int32_t>(id);
    token.normal = token.content;
    if (token.normalized) {
      std::string buffer;
      const absl::StatusOr<absl::string_view> normal = normalizer.Normalize(token.content, budget, &buffer);
      if (!normal.ok()) return element.Error(normal.status().message());
      token.normal = std::string(*normal);
      if (token.normal.empty() || token.normal.size() > kMaxContentBytes) {
        return element.Error(absl::StrCat("content: its normal form has ", token.normal.size(), " bytes; wanted 1 to ",
                                          kMaxContentBytes));
      }
    }
    bytes += token.content.size() + token.normal.size();
    if (bytes > kMaxAllBytes) {
      return element.Error(absl::StrCat("the added tokens have more than ", kMaxAllBytes, " bytes together"));
    }
    const int32_t index = static_cast<int32_t>(added.tokens_.size());
    added.by_id_[token.id] = index;
    added.by_content_[token.content] = index;
    if (!added.tries_[token.normalized].Add(token.normal, index)) {
      return element.Error(absl::StrCat("another token has the same normal form, ", ShownJson(token.normal)));
    }
    added.tokens_.push_back(std::move(token));
  }
  return added;
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

int32_t AddedTokens::Id(absl::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? -1 : tokens_[found->second].id;
}

bool AddedTokens::IsSpecial(absl::string_view content) const {
  const auto found = by_content_.find(content);
  return found != by_content_.end() && tokens_[found->second].special;
}

bool AddedTokens::by_line() const {
  return std::none_of(tokens_.begin(), tokens_.end(), [](const AddedToken& token) {
    return token.left_strip || token.content.find('\n') != std::string::npos ||
           token.normal.find('\n') != std::string::npos;
  });
}

absl::Status AddedTokens::Split(absl::string_view text, bool normalized, bool special,
                                std::vector<Section>* sections) const {
  const Trie& trie = tries_[normalized];
  // White space behind a token with right_strip ends at `space_end`, if it begins before that.
  size_t space_end = 0;
  // `done` is the end of the last section. It can lie after `at`, where the search continues: white space after a token
  // with right_strip may itself hold a token, which the library finds too.
  size_t done = 0;
  absl::Status status;
  for (size_t at = 0; at < text.size();) {
    size_t bytes = 0;
    const int32_t index = trie.begins[static_cast<uint8_t>(text[at])] ? trie.Longest(text.substr(at), &bytes) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = at, end = at + bytes;
    at = end;
    if (token.special && !special) continue;
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) || BeginsWithWord(text.substr(end)))) continue;
    // White space that was looked at is not looked at again: there may be a token in each byte of it.
    if (token.left_strip) begin = begin < done ? done : done + SpaceAtEnd(text.substr(done, begin - done));
    if (token.right_strip) {
      if (end >= space_end) space_end = end + SpaceAtBegin(text.substr(end));
      end = space_end;
    }
    if (begin > end) {
      status.Update(absl::InvalidArgumentError(absl::StrCat(
          "the added token ", ShownJson(token.content), " strips white space on its left and stands at byte ",
          at - bytes,
          " in white space that the token before it has stripped on its right, where the tokenizers library fails")));
      continue;
    }
    if (done < begin) sections->push_back({done, begin, -1});
    // The token before it may have taken all of it.
    if (begin < end) sections->push_back({begin, end, token.id});
    done = end;
  }
  if (done != text.size()) sections->push_back({done, text.size(), -1});
  return status;
}

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
