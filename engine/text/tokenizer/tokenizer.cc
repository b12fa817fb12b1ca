// Reads the parts of a tokenizer.json.

#include "engine/text/tokenizer/tokenizer.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "engine/strings/utf8.h"
#include "engine/text/tokenizer/character.h"
#include "engine/text/tokenizer/part.h"
#include "engine/text/tokenizer/tokenizer_folder.h"
#include "kernels/check.h"

namespace shale {
namespace {

// The largest known files have 35 MB.
constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
// The most tokens before and after a document. Known files have one.
constexpr size_t kMaxSurrounding = 1024;

// Reads the tokens of a special token of a template.
absl::Status ReadTemplateToken(const JsonPart& special_tokens, const JsonPart& piece, std::vector<int32_t>* tokens) {
  SHALE_RETURN_IF_ERROR(piece.Check({"id", "type_id"}));
  SHALE_ASSIGN_OR_RETURN(const std::string id, piece.Text("id"));
  const JsonPart token = special_tokens.Member(id);
  SHALE_RETURN_IF_ERROR(token.Check({"id", "ids", "tokens"}));
  const JsonPart ids = token.Member("ids");
  if (!ids.json().is_array()) return ids.Error("wanted a list");
  for (const Json& number : ids.json()) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() >= uint64_t{1} << 31) {
      return ids.Error(absl::StrCat("found ", ShownJson(number), "; wanted a token"));
    }
    if (tokens->size() == kMaxSurrounding) {
      return piece.Error(absl::StrCat("more than ", kMaxSurrounding, " tokens around a text are not supported"));
    }
    tokens->push_back(number.get<int32_t>());
  }
  return absl::OkStatus();
}

// Reads "post_processor": what surrounds a document.
absl::Status ReadPostProcessor(const JsonPart& part, std::vector<int32_t>* prefix, std::vector<int32_t>* suffix) {
  std::vector<JsonPart> parts;
  SHALE_RETURN_IF_ERROR(Flatten(part, "processors", &parts));
  for (const JsonPart& p : parts) {
    SHALE_ASSIGN_OR_RETURN(const std::string type, p.Type());
    if (type == "ByteLevel") continue;  // Changes offsets only.
    if (type != "TemplateProcessing") {
      return p.Error(absl::StrCat("the post-processor ", ShownJson(type),
                                  " is not supported; supported: ByteLevel, TemplateProcessing, Sequence"));
    }
    SHALE_RETURN_IF_ERROR(p.Check({"single", "pair", "special_tokens"}));
    if (!p.Member("special_tokens").json().is_object()) return p.Error("special_tokens: wanted an object");
    SHALE_ASSIGN_OR_RETURN(const std::vector<JsonPart> pieces, p.Member("single").Elements());
    std::vector<int32_t> before, behind;
    int texts = 0;
    for (const JsonPart& piece : pieces) {
      SHALE_RETURN_IF_ERROR(piece.Check({"Sequence", "SpecialToken"}));
      if (piece.json().contains("Sequence")) {
        const JsonPart sequence = piece.Member("Sequence");
        SHALE_RETURN_IF_ERROR(sequence.Check({"id", "type_id"}));
        SHALE_ASSIGN_OR_RETURN(const std::string id, sequence.Text("id"));
        if (id != "A") return sequence.Error("a template for one text needs the sequence A alone");
        ++texts;
      } else {
        SHALE_RETURN_IF_ERROR(ReadTemplateToken(p.Member("special_tokens"), piece.Member("SpecialToken"),
                                                texts == 0 ? &before : &behind));
      }
    }
    if (texts != 1) return p.Error("single: wanted the sequence A once");
    prefix->insert(prefix->begin(), before.begin(), before.end());
    suffix->insert(suffix->end(), behind.begin(), behind.end());
  }
  return absl::OkStatus();
}

}  // namespace

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
  WordCache::Lookup place;
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

absl::StatusOr<Tokenizer> Tokenizer::FromJson(absl::string_view text) {
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseStrictJson(text));
  return FromParsed(json);
}

absl::StatusOr<Tokenizer> Tokenizer::FromParsed(const Json& json) {
  const JsonPart file(&json, "tokenizer");
  // "truncation" and "padding" are for batches of a fixed length. They are not applied, as in transformers.
  SHALE_RETURN_IF_ERROR(file.Check({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                                    "post_processor", "decoder", "model"}));
  if (const Json& version = file.Member("version").json(); version != "1.0") {
    return file.Error(absl::StrCat("version: found ", ShownJson(version), "; wanted \"1.0\""));
  }
  const auto part = [&](const std::string& name) { return JsonPart(&file.Member(name).json(), name); };
  auto parts = std::make_shared<Parts>();
  SHALE_ASSIGN_OR_RETURN(parts->normalizer, Normalizer::Read(part("normalizer")));
  SHALE_ASSIGN_OR_RETURN(parts->pre_tokenizer, PreTokenizer::Read(part("pre_tokenizer")));
  if (const PreTokenizer& pieces = parts->pre_tokenizer;
      pieces.marks_start() &&
      !(pieces.marks_start_of_pieces() ? parts->normalizer.empty() : parts->normalizer.keeps_start())) {
    return part("pre_tokenizer")
        .Error(
            "Metaspace with prepend_scheme \"first\" is not supported with this normalizer, which may change where "
            "the tokenizers library sees the beginning of the text");
  }
  SHALE_ASSIGN_OR_RETURN(parts->model, BpeModel::Read(part("model"), parts->pre_tokenizer.byte_level()));
  SHALE_ASSIGN_OR_RETURN(parts->added, AddedTokens::Read(part("added_tokens"), parts->model, parts->normalizer));
  SHALE_ASSIGN_OR_RETURN(parts->decoder, Decoder::Read(part("decoder")));
  SHALE_RETURN_IF_ERROR(ReadPostProcessor(part("post_processor"), &parts->prefix, &parts->suffix));
  parts->vocabulary = parts->model.limit();
  for (const AddedToken& token : parts->added.tokens()) {
    parts->vocabulary = std::max<int64_t>(parts->vocabulary, token.id + int64_t{1});
  }
  for (const std::vector<int32_t>* tokens : {&parts->prefix, &parts->suffix}) {
    for (const int32_t token : *tokens) {
      if (token >= parts->vocabulary) {
        return absl::InvalidArgumentError(
            absl::StrCat("post_processor: the token ", token, " is not in the vocabulary"));
      }
    }
  }
  Tokenizer tokenizer;
  tokenizer.parts_ = std::move(parts);
  return tokenizer;
}

absl::StatusOr<Tokenizer> Tokenizer::LoadFolder(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(FolderTokenizer read, ReadFolderTokenizer(folder));
  absl::StatusOr<Tokenizer> tokenizer = FromParsed(read.tokenizer);
  if (!tokenizer.ok()) {
    return absl::Status(tokenizer.status().code(),
                        absl::StrCat(JoinPath(folder, "tokenizer.json"), ": ", tokenizer.status().message()));
  }
  tokenizer->special_tokens_ = std::make_shared<const SpecialTokens>(std::move(read.special_tokens));
  return tokenizer;
}

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return LoadFolder(path);
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  absl::StatusOr<Tokenizer> tokenizer = FromJson(text);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(), absl::StrCat(path, ": ", tokenizer.status().message()));
}

int32_t Tokenizer::SpecialToken(absl::string_view name) const {
  for (const auto& [known, content] : special_tokens()) {
    if (known == name) return Find(content);
  }
  return -1;
}

}  // namespace shale
