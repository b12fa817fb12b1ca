#include "engine/tokenize/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"
#include "engine/tokenize/character.h"
#include "kernels/check.h"

namespace shale {

int32_t Tokenizer::Find(absl::string_view written) const {
  const int32_t added = parts_->added.Id(written);
  return added >= 0 ? added : parts_->model.Find(written);
}

bool Tokenizer::by_line() const {
  return parts_->normalizer.by_line() && parts_->pre_tokenizer.by_line() && parts_->added.by_line();
}

const std::string* Tokenizer::Shown(int32_t token, bool skip_special) const {
  const AddedToken* added = parts_->added.Find(token);
  const std::string* shown = added != nullptr ? &added->normal : parts_->model.Written(token);
  return shown != nullptr && skip_special && parts_->added.IsSpecial(*shown) ? nullptr : shown;
}

std::string Tokenizer::Decode(const std::vector<int32_t>& tokens, bool skip_special) const {
  TokenStream stream(*this, skip_special, Decoder::Bytes::kTogether);
  std::string text;
  for (const int32_t token : tokens) text += stream.Push(token);
  return text + stream.Finish();
}

std::vector<absl::string_view> Tokenizer::SpecialTokensIn(absl::string_view text) const {
  std::vector<absl::string_view> found;
  for (const bool normalized : {false, true}) {
    if (!parts_->added.Any(normalized)) continue;
    std::vector<Section> sections;
    // Where it fails, Encode fails too.
    parts_->added.Split(text, normalized, /*special=*/true, &sections).IgnoreError();
    for (const Section& section : sections) {
      if (section.token < 0 || !parts_->added.Find(section.token)->special) continue;
      found.push_back(text.substr(section.begin, section.end - section.begin));
    }
  }
  return found;
}

absl::Status Encoder::Encode(absl::string_view text, const EncodeOptions& options, std::vector<int32_t>* tokens) {
  const Tokenizer::Parts& parts = *tokenizer_.parts_;
  std::string well_formed;
  if (!IsUtf8(text)) {
    well_formed = ReplaceIllFormed(text);
    text = well_formed;
  }
  TextBudget budget(text.size());
  if (options.add_prefix_and_suffix) tokens->insert(tokens->end(), parts.prefix.begin(), parts.prefix.end());
  if (!parts.added.Any(/*normalized=*/false)) {
    SHALE_RETURN_IF_ERROR(EncodeSection(text, /*at_start=*/true, options, budget, tokens));
  } else {
    std::vector<Section> sections;
    SHALE_RETURN_IF_ERROR(parts.added.Split(text, /*normalized=*/false, options.special_tokens_in_text, &sections));
    for (const Section& section : sections) {
      if (section.token >= 0) {
        tokens->push_back(section.token);
        continue;
      }
      SHALE_RETURN_IF_ERROR(EncodeSection(text.substr(section.begin, section.end - section.begin), section.begin == 0,
                                          options, budget, tokens));
    }
  }
  if (options.add_prefix_and_suffix) tokens->insert(tokens->end(), parts.suffix.begin(), parts.suffix.end());
  return absl::OkStatus();
}

absl::Status Encoder::EncodeSection(absl::string_view text, bool at_start, const EncodeOptions& options,
                                    TextBudget& budget, std::vector<int32_t>* tokens) {
  const Tokenizer::Parts& parts = *tokenizer_.parts_;
  std::string buffer;
  SHALE_ASSIGN_OR_RETURN(const absl::string_view normal, parts.normalizer.Normalize(text, budget, &buffer));
  if (!parts.added.Any(/*normalized=*/true)) return EncodeNormal(normal, at_start, options, budget, tokens);
  std::vector<Section> sections;
  SHALE_RETURN_IF_ERROR(parts.added.Split(normal, /*normalized=*/true, options.special_tokens_in_text, &sections));
  for (const Section& section : sections) {
    if (section.token >= 0) {
      tokens->push_back(section.token);
      continue;
    }
    SHALE_RETURN_IF_ERROR(EncodeNormal(normal.substr(section.begin, section.end - section.begin),
                                       at_start && section.begin == 0, options, budget, tokens));
  }
  return absl::OkStatus();
}

absl::Status Encoder::EncodeNormal(absl::string_view text, bool at_start, const EncodeOptions& options,
                                   TextBudget& budget, std::vector<int32_t>* tokens) {
  if (text.empty()) return absl::OkStatus();
  const PreTokenizer& pre_tokenizer = tokenizer_.parts_->pre_tokenizer;
  if (const Scanner scanner = pre_tokenizer.scanner(); scanner != nullptr) {
    const char* end = text.data() + text.size();
    for (const char* at = text.data(); at < end;) {
      const char* next = scanner(at, end);
      SHALE_RETURN_IF_ERROR(EncodePiece(absl::string_view(at, next - at), options, tokens));
      at = next;
    }
    return absl::OkStatus();
  }
  Pieces pieces = {.texts = {std::string(text)}, .at_start = at_start};
  SHALE_RETURN_IF_ERROR(pre_tokenizer.Split(budget, &pieces));
  for (const std::string& piece : pieces.texts) {
    if (!piece.empty()) SHALE_RETURN_IF_ERROR(EncodePiece(piece, options, tokens));
  }
  return absl::OkStatus();
}

absl::Status Encoder::EncodePiece(absl::string_view piece, const EncodeOptions& options, std::vector<int32_t>* tokens) {
  const BpeModel& model = tokenizer_.parts_->model;
  if (piece.size() > WordCache::kMaxBytes) {
    if (static_cast<int64_t>(piece.size()) > options.largest_piece_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the text has ", piece.size(),
                                                       " bytes in a row that the tokenizer does not split; at most ",
                                                       options.largest_piece_bytes, " are supported"));
    }
    model.Encode(piece, scratch_, tokens);
    return absl::OkStatus();
  }
  WordCache::Place place;
  if (cache_.Find(piece, &place, tokens)) return absl::OkStatus();
  const size_t before = tokens->size();
  model.Encode(piece, scratch_, tokens);
  cache_.Insert(place, tokens->data() + before, tokens->size() - before);
  return absl::OkStatus();
}

TokenStream::TokenStream(Tokenizer tokenizer, bool skip_special, Decoder::Bytes bytes)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), stream_(tokenizer_.parts_->decoder, bytes) {}

std::string TokenStream::Push(int32_t token) {
  const std::string* shown = tokenizer_.Shown(token, skip_special_);
  return shown == nullptr ? "" : stream_.Push(*shown);
}

}  // namespace shale
