// Reads the parts of a tokenizer.json.
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "engine/io/file.h"
#include "engine/tokenize/part.h"
#include "engine/tokenize/tokenizer.h"
#include "engine/tokenize/tokenizer_folder.h"
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
