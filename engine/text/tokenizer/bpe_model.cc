#include "engine/text/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_format.h"
#include "engine/strings/messages.h"
#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Ids must be below this, so that a vocabulary with gaps takes bounded memory.
constexpr int64_t kMaxTokens = 1 << 22;
// Up to so many symbols, a search through all of them finds the next merge faster than a heap does.
constexpr size_t kShort = 24;

// Joins the symbol at `at` with the next one.
void Join(std::vector<BpeModel::Scratch::Symbol>& symbols, int32_t at, int32_t token) {
  auto& symbol = symbols[at];
  auto& right = symbols[symbol.next];
  symbol.token = token;
  right.token = -1;
  symbol.next = right.next;
  if (symbol.next >= 0) symbols[symbol.next].previous = at;
}

}  // namespace

absl::Status BpeModel::ReadVocabulary(const JsonPart& part) {
  const JsonPart vocabulary = part.Member("vocab");
  if (!vocabulary.json().is_object()) return vocabulary.Error("wanted an object from tokens to ids");
  for (const auto& [written, value] : vocabulary.json().items()) {
    const int64_t id = value.is_number_unsigned()
                           ? static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), kMaxTokens))
                           : kMaxTokens;
    if (id >= kMaxTokens) {
      return vocabulary.Error(absl::StrCat("token ", ShownJson(written), ": found ", ShownJson(value),
                                           "; wanted an id from 0 to ", kMaxTokens - 1));
    }
    if (id >= static_cast<int64_t>(written_.size())) {
      written_.resize(id + 1);
      exists_.resize(id + 1);
    }
    if (exists_[id]) {
      return vocabulary.Error(
          absl::StrCat("tokens ", ShownJson(written_[id]), " and ", ShownJson(written), " have the same id ", id));
    }
    exists_[id] = true;
    written_[id] = written;
    ids_[written] = id;
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ReadMerges(const JsonPart& part) {
  const JsonPart list = part.Member("merges");
  if (!list.json().is_array()) return list.Error("wanted a list");
  std::vector<PairTable::Entry> entries;
  for (size_t i = 0; i < list.json().size(); ++i) {
    const Json& merge = list.json()[i];
    const JsonPart here(&merge, absl::StrCat(list.path(), "[", i, "]"));
    std::string left, right;
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return here.Error(absl::StrCat("found ", ShownJson(merge), "; wanted two tokens with one space between"));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      return here.Error(absl::StrCat("found ", ShownJson(merge), "; wanted a pair of tokens"));
    }
    for (const std::string& token : {left, right, left + right}) {
      if (Find(token) < 0) return here.Error(absl::StrCat("the token ", ShownJson(token), " is not in the vocabulary"));
    }
    entries.push_back({Find(left), Find(right), {static_cast<uint32_t>(i), Find(left + right)}});
  }
  merges_ = PairTable(entries);
  return absl::OkStatus();
}

absl::StatusOr<BpeModel> BpeModel::Read(const JsonPart& part, bool byte_level) {
  // Files before the field "type" existed are BPE if they have merges.
  const std::string type = part.json().is_object() && part.json().contains("type") ? part.Type().value_or("?") : "BPE";
  if (type != "BPE")
    return part.Error(absl::StrCat("the model ", ShownJson(type), " is not supported; supported: BPE"));
  SHALE_RETURN_IF_ERROR(part.Check({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                    "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  const Json& dropout = part.Member("dropout").json();
  if (!dropout.is_null() && dropout != 0.0) return part.Error("dropout is not supported");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& text = part.Member(name).json();
    if (!text.is_null() && text != "") return part.Error(absl::StrCat(name, " is not supported"));
  }
  BpeModel model;
  model.byte_level_ = byte_level;
  SHALE_ASSIGN_OR_RETURN(model.fuse_unknown_, part.Flag("fuse_unk", false));
  SHALE_ASSIGN_OR_RETURN(model.byte_fallback_, part.Flag("byte_fallback", false));
  SHALE_ASSIGN_OR_RETURN(model.ignore_merges_, part.Flag("ignore_merges", false));
  SHALE_RETURN_IF_ERROR(model.ReadVocabulary(part));
  SHALE_RETURN_IF_ERROR(model.ReadMerges(part));
  if (!part.Member("unk_token").is_null()) {
    SHALE_ASSIGN_OR_RETURN(const std::string unknown, part.Text("unk_token"));
    model.unknown_ = model.Find(unknown);
    if (model.unknown_ < 0) return part.Error(absl::StrCat("unk_token ", ShownJson(unknown), " is not in vocab"));
  }
  bool complete = true;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string written =
        byte_level ? BytesToCharacters(std::string(1, static_cast<char>(byte))) : absl::StrFormat("<0x%02X>", byte);
    model.byte_tokens_[byte] = model.Find(written);
    complete = complete && model.byte_tokens_[byte] >= 0;
    if (byte_level && model.byte_fallback_ && !complete) {
      return part.Error(
          absl::StrFormat("byte_fallback is only supported for bytes if vocab has all of them; it lacks "
                          "0x%02X, which is written %s",
                          byte, Quoted(written)));
    }
  }
  if (model.byte_fallback_ && !complete) return part.Error("byte_fallback needs the tokens <0x00> to <0xFF>");
  if (model.ignore_merges_) {
    for (const auto& [written, id] : model.ids_) {
      std::string piece = written;
      if (byte_level && !CharactersToBytes(written, &piece)) continue;
      model.whole_[piece] = id;
    }
  }
  return model;
}

void BpeModel::AddSymbols(absl::string_view piece, std::vector<Scratch::Symbol>& symbols) const {
  const auto add = [&](int32_t token) { symbols.push_back({.token = token}); };
  bool unknown = false;  // Whether the last character is unknown and has no token yet.
  const auto add_known = [&](int32_t token) {
    if (unknown) add(unknown_);
    unknown = false;
    add(token);
  };
  const auto add_unknown = [&] {
    if (unknown && !fuse_unknown_) add(unknown_);
    unknown = unknown_ >= 0;
  };
  symbols.reserve(piece.size());
  if (byte_level_) {
    for (const char byte : piece) {
      const int32_t token = byte_tokens_[static_cast<uint8_t>(byte)];
      token >= 0 ? add_known(token) : add_unknown();
    }
    if (unknown) add(unknown_);
    return;
  }
  const char* at = piece.data();
  while (at < piece.data() + piece.size()) {
    const char* begin = at;
    NextCharacter(&at);
    const absl::string_view character(begin, at - begin);
    if (const int32_t token = Find(character); token >= 0) {
      add_known(token);
    } else if (byte_fallback_) {
      for (const char byte : character) add(byte_tokens_[static_cast<uint8_t>(byte)]);
    } else {
      add_unknown();
    }
  }
  if (unknown) add(unknown_);
}

void BpeModel::Encode(absl::string_view piece, Scratch& scratch, std::vector<int32_t>* tokens) const {
  if (ignore_merges_) {
    if (const auto found = whole_.find(piece); found != whole_.end()) {
      tokens->push_back(found->second);
      return;
    }
  }
  auto& symbols = scratch.symbols;
  symbols.clear();
  AddSymbols(piece, symbols);
  const int32_t count = static_cast<int32_t>(symbols.size());
  if (count == 0) return;
  const auto rank = [&](int32_t at) {
    return symbols[at].next < 0 ? Merge::kNone : merges_.Find(symbols[at].token, symbols[symbols[at].next].token).rank;
  };
  const auto merge = [&](int32_t at) {
    Join(symbols, at, merges_.Find(symbols[at].token, symbols[symbols[at].next].token).token);
    symbols[at].rank = rank(at);
    if (const int32_t previous = symbols[at].previous; previous >= 0) symbols[previous].rank = rank(previous);
  };
  for (int32_t i = 0; i < count; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : -1;
  }
  for (int32_t i = 0; i < count; ++i) symbols[i].rank = rank(i);
  if (symbols.size() <= kShort) {
    while (true) {
      int32_t best = 0;
      for (int32_t at = 0; at >= 0; at = symbols[at].next) {
        if (symbols[at].rank < symbols[best].rank) best = at;
      }
      if (symbols[best].rank == Merge::kNone) break;
      merge(best);
    }
  } else {
    // Entries are (rank, position), lowest first. One whose rank is no longer that of its position is skipped.
    auto& heap = scratch.heap;
    heap.clear();
    const auto push = [&](int32_t at) {
      if (symbols[at].rank == Merge::kNone) return;
      heap.push_back(static_cast<uint64_t>(symbols[at].rank) << 32 | static_cast<uint32_t>(at));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    for (int32_t i = 0; i < count; ++i) push(i);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const int32_t at = static_cast<int32_t>(heap.back() & 0xFFFFFFFF);
      const uint32_t then = static_cast<uint32_t>(heap.back() >> 32);
      heap.pop_back();
      if (symbols[at].token < 0 || symbols[at].rank != then) continue;
      merge(at);
      push(at);
      if (symbols[at].previous >= 0) push(symbols[at].previous);
    }
  }
  for (int32_t at = 0; at >= 0; at = symbols[at].next) tokens->push_back(symbols[at].token);
}

int32_t BpeModel::Find(absl::string_view written) const {
  const auto found = ids_.find(written);
  return found == ids_.end() ? -1 : found->second;
}

const std::string* BpeModel::Written(int32_t token) const {
  return token >= 0 && token < limit() && exists_[token] ? &written_[token] : nullptr;
}

}  // namespace shale
