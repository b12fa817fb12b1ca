#include "engine/text/documents/prepared_text.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/content.h"
#include "engine/files/data/data_files.h"
#include "engine/files/hugging_face/folder_files.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"
#include "engine/files/io/folder_lock.h"
#include "engine/strings/messages.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/token_files.h"
#include "engine/text/documents/tokenize_documents.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/tokenizer_folder.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Hidden files, which TokenSource::Open leaves out.
constexpr char kCounts[] = ".counts";
constexpr char kDocuments[] = ".documents";
constexpr char kManifest[] = ".manifest.json";
constexpr int kVersion = 6;  // Must change when the same text becomes other tokens, or files of another form.
constexpr int64_t kMaxManifestBytes = int64_t{1} << 24;

// Returns the token to put after a document, or -1 if the tokenizer puts it there itself or the folder names none.
absl::StatusOr<int32_t> EndOfDocument(const Tokenizer& tokenizer, const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const int32_t token, DocumentEnd(tokenizer, folder));
  return !tokenizer.suffix().empty() && tokenizer.suffix().back() == token ? -1 : token;
}

Json TotalsToJson(const TokenizeTotals& totals) {
  return {{"documents", totals.documents}, {"bytes", totals.bytes},
          {"tokens", totals.tokens},       {"counted", totals.counted},
          {"skipped", totals.skipped},     {"first_skipped", totals.first_skipped},
          {"replaced", totals.replaced},   {"first_replaced", totals.first_replaced},
          {"dropped", totals.dropped},     {"first_dropped", totals.first_dropped},
          {"spelled", totals.spelled},     {"first_spelled", totals.first_spelled},
          {"ignored", totals.ignored}};
}

// Makes the tokens in `folder`, which must not exist.
absl::Status Make(const TextData& text, const std::vector<SeenFile>& seen, const PrepareOptions& how,
                  const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(text.tokenizer));
  TokenizeOptions options = {.threads = how.threads,
                             .loss_on = text.loss_on,
                             .bad_lines = text.bad_lines,
                             .spelled_tokens = text.spelled_tokens,
                             .allow_dropped_text = text.allow_dropped_text};
  SHALE_ASSIGN_OR_RETURN(options.end_of_document, EndOfDocument(tokenizer, text.tokenizer));
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Load(text.tokenizer, text.date);
  // A template that is not supported is an error only if the text has messages.
  if (chat.ok()) {
    options.chat = &*chat;
  } else {
    options.no_chat = chat.status();
  }
  SHALE_ASSIGN_OR_RETURN(DocumentReader reader, DocumentReader::Open(text.path, {.cut_lines = tokenizer.by_line(),
                                                                                 .files = text.files,
                                                                                 .bad_bytes = text.bad_bytes}));
  SHALE_ASSIGN_OR_RETURN(TokenFilesWriter writer, TokenFilesWriter::Create(folder, tokenizer.vocabulary()));
  CountsWriter counts(JoinPath(writer.folder(), kCounts));
  SHALE_ASSIGN_OR_RETURN(DocumentEndsWriter ends, DocumentEndsWriter::Create(JoinPath(writer.folder(), kDocuments)));
  SHALE_ASSIGN_OR_RETURN(const TokenizeTotals totals,
                         TokenizeDocuments(
                             tokenizer, reader, options,
                             [&](const DocumentTokens& document) {
                               SHALE_RETURN_IF_ERROR(counts.Add(std::ssize(document.tokens), document.counts));
                               SHALE_RETURN_IF_ERROR(ends.Add(std::ssize(document.tokens), document.ends));
                               return writer.Add(document.tokens);
                             },
                             [&](const TokenizeTotals&) {
                               if (how.progress.reading == nullptr) return;
                               how.progress.reading(reader.bytes_read(), reader.total_bytes());
                             }));
  for (const SeenFile& file : seen) {
    SHALE_ASSIGN_OR_RETURN(const InputFile now, InputFile::Open(file.path));
    SHALE_RETURN_IF_ERROR(file.content.Check(now));
  }
  SHALE_RETURN_IF_ERROR(writer.End());
  SHALE_RETURN_IF_ERROR(counts.End());
  SHALE_RETURN_IF_ERROR(ends.End());
  Json manifest = {{"version", kVersion},
                   {"vocabulary", tokenizer.vocabulary()},
                   {"end_of_document", options.end_of_document},
                   {"totals", TotalsToJson(totals)}};
  if (chat.ok()) manifest["chat_template"] = chat->digest();
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(writer.folder()));
  for (const std::string& name : names) {
    if (FolderLock::IsLockFile(name)) continue;
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(JoinPath(writer.folder(), name)));
    TextChecksum sum;
    SHALE_RETURN_IF_ERROR(sum.AddFile(file).status());
    manifest["files"][name] = {{"bytes", file.size()}, {"crc32c", sum.crc32c()}};
  }
  SHALE_RETURN_IF_ERROR(WriteFileDurably(JoinPath(writer.folder(), kManifest), manifest.dump(1) + "\n"));
  return writer.Commit();
}

absl::Status Damaged(const std::string& folder, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(folder, " is damaged: ", what, "; remove this folder, and the tokens are made again"));
}

// Reads a number of an object of the manifest. Returns -1 if there is none.
int64_t NumberIn(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
}

// Reads a string of an object of the manifest. Returns "" if there is none.
std::string TextIn(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Returns whether a name can be that of a file which Make has written. The manifest may be damaged, or not ours.
bool IsFileName(absl::string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isgraph(c) && c != '/'; });
}

absl::StatusOr<PreparedText> OpenPrepared(const TextData& text, const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(JoinPath(folder, kManifest), kMaxManifestBytes));
  const absl::StatusOr<Json> manifest = ParseStrictJson(bytes);
  if (!manifest.ok() || NumberIn(*manifest, "version") != kVersion || !manifest->contains("files") ||
      !(*manifest)["files"].is_object() || !(*manifest)["files"].contains(kDocuments) ||
      NumberIn(*manifest, "vocabulary") < 1) {
    return Damaged(folder, absl::StrCat(kManifest, " is not a manifest"));
  }
  for (const auto& [name, recorded] : (*manifest)["files"].items()) {
    if (!IsFileName(name)) return Damaged(folder, absl::StrCat(kManifest, " names a file that cannot be in it"));
    const absl::StatusOr<InputFile> file = InputFile::Open(JoinPath(folder, name));
    if (!file.ok()) return Damaged(folder, file.status().message());
    TextChecksum sum;
    SHALE_RETURN_IF_ERROR(sum.AddFile(*file).status());
    if (file->size() != NumberIn(recorded, "bytes") || sum.crc32c() != NumberIn(recorded, "crc32c")) {
      return Damaged(folder, absl::StrCat(name, " is not what was written"));
    }
  }
  TextTokens made = {.path = text.path, .vocabulary = NumberIn(*manifest, "vocabulary")};
  SHALE_ASSIGN_OR_RETURN(made.tokenizer, TokenizerDigest(text.tokenizer));
  // Checkpoints record this name. It has the end of documents and the template, because a model learns them, too.
  if (const int64_t end = NumberIn(*manifest, "end_of_document"); end >= 0) {
    absl::StrAppend(&made.tokenizer, ", end of documents ", end);
  }
  if (const int64_t digest = NumberIn(*manifest, "chat_template"); digest >= 0) {
    absl::StrAppendFormat(&made.tokenizer, ", chat template %08x", digest);
  }
  made.documents_path = JoinPath(folder, kDocuments);
  if ((*manifest)["files"].contains(kCounts)) made.counts_path = JoinPath(folder, kCounts);
  SHALE_ASSIGN_OR_RETURN(TokenSource tokens, TokenSource::OpenText(folder, made));
  const Json recorded = manifest->value("totals", Json());
  TextReport report = {.path = text.path, .folder = folder};
  report.totals = {.documents = NumberIn(recorded, "documents"),
                   .bytes = NumberIn(recorded, "bytes"),
                   .tokens = NumberIn(recorded, "tokens"),
                   .counted = NumberIn(recorded, "counted"),
                   .skipped = NumberIn(recorded, "skipped"),
                   .first_skipped = TextIn(recorded, "first_skipped"),
                   .replaced = NumberIn(recorded, "replaced"),
                   .first_replaced = TextIn(recorded, "first_replaced"),
                   .dropped = NumberIn(recorded, "dropped"),
                   .first_dropped = TextIn(recorded, "first_dropped"),
                   .spelled = NumberIn(recorded, "spelled"),
                   .first_spelled = TextIn(recorded, "first_spelled")};
  if (const auto names = recorded.find("ignored"); names != recorded.end() && names->is_array()) {
    for (const Json& name : *names) {
      if (name.is_string()) report.totals.ignored.push_back(name.get<std::string>());
    }
  }
  return PreparedText{.tokens = std::move(tokens), .report = std::move(report)};
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Locks a key of the cache. If another process is making its tokens, waits until it ends, and sets `*waited`.
absl::StatusOr<FolderLock> Lock(const std::string& path, bool* waited) {
  constexpr absl::string_view kHeld = "another process makes these tokens";
  while (true) {
    absl::StatusOr<FolderLock> lock = FolderLock::Take(path, std::string(kHeld));
    // Other errors may have the same code, as where a file stands in the place of a folder.
    if (lock.ok() || lock.status().message() != kHeld) return lock;
    *waited = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// The error of a process that could not make the tokens of a key, in a file. Processes that waited for it return this
// error. Otherwise each of them would read all text, one after another, to find the same error. The file stays until
// the next attempt.
class LeftError {
 public:
  explicit LeftError(std::string path) : path_(std::move(path)) {}

  // Returns the error, or OK if there is none.
  absl::Status Read() const {
    constexpr int64_t kMostBytes = 1 << 16;
    const absl::StatusOr<std::string> text = ReadFile(path_, kMostBytes);
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text.ok() ? absl::string_view(*text) : "", absl::MaxSplits('\n', 1));
    int code = 0;
    if (!absl::SimpleAtoi(parts.first, &code)) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
  }
  // Writes the error. If that fails, the processes that wait only take longer.
  void Write(const absl::Status& error) const {
    WriteFileDurably(path_, absl::StrCat(static_cast<int>(error.code()), "\n", error.message())).IgnoreError();
  }
  void Remove() const { unlink(path_.c_str()); }

 private:
  const std::string path_;
};

// Makes the tokens of a key, unless they exist. Returns whether this process made them.
absl::StatusOr<bool> MakeOnce(const TextData& text, const std::vector<SeenFile>& seen, const PrepareOptions& options,
                              const std::string& key) {
  const std::string folder = JoinPath(options.cache, key);
  if (Exists(folder)) return false;
  bool waited = false;
  const LeftError left(JoinPath(options.cache, absl::StrCat(".", key, ".error")));
  SHALE_ASSIGN_OR_RETURN(const FolderLock lock,
                         Lock(JoinPath(options.cache, absl::StrCat(".", key, ".lock")), &waited));
  if (Exists(folder)) return false;
  if (waited) SHALE_RETURN_IF_ERROR(left.Read());
  left.Remove();
  const absl::Status made = Make(text, seen, options, folder);
  if (made.ok()) return true;
  if (Exists(folder)) return false;  // Made by a process that did not take the lock.
  left.Write(made);
  return made;
}

constexpr int64_t kReadBytes = int64_t{1} << 18;
constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 28;

}  // namespace

absl::StatusOr<bool> IsText(const std::string& path, DataFilesOptions options) {
  const DataFormat format = options.format;
  if (format != DataFormat::kByContent) return format == DataFormat::kText || format == DataFormat::kJsonLines;
  options.lists = true;
  SHALE_ASSIGN_OR_RETURN(const DataFiles found, ListDataFiles(path, options));
  return found.files[0].content.kind != ContentKind::kTokens;  // Other files are of the same kind.
}

absl::StatusOr<PreparedText> PrepareText(const TextData& text, const PrepareOptions& options) {
  std::vector<SeenFile> seen;
  DataFilesOptions choice = text.files;
  choice.lists = true;
  SHALE_ASSIGN_OR_RETURN(DataFiles found, ListDataFiles(text.path, choice));
  SHALE_ASSIGN_OR_RETURN(const std::string key, TextKey(text, kVersion, found.files, &seen));
  SHALE_ASSIGN_OR_RETURN(const bool made, MakeOnce(text, seen, options, key));
  SHALE_ASSIGN_OR_RETURN(PreparedText prepared, OpenPrepared(text, JoinPath(options.cache, key)));
  prepared.report.made = made;
  for (DataFile& file : found.files) prepared.report.files.push_back(std::move(file.path));
  prepared.report.skipped_files = std::move(found.skipped);
  if (options.progress.ready != nullptr) options.progress.ready(prepared.report);
  return prepared;
}

void TextChecksum::Add(absl::string_view bytes) {
  crc64_ = Crc64(bytes, crc64_);
  crc32c_ = Crc32c(bytes, crc32c_);
}

void TextChecksum::AddNumber(int64_t number) {
  Add(absl::string_view(reinterpret_cast<const char*>(&number), sizeof(number)));
}

absl::StatusOr<uint64_t> TextChecksum::AddFile(const InputFile& file) {
  file.ReadsInOrder();
  std::string buffer;
  uint64_t alone = 0;
  for (int64_t at = 0; at < file.size(); at += std::ssize(buffer)) {
    buffer.resize(std::min(kReadBytes, file.size() - at));
    SHALE_RETURN_IF_ERROR(file.ReadAt(at, buffer.data(), std::ssize(buffer)));
    Add(buffer);
    alone = Crc64(buffer, alone);
  }
  return alone;
}

absl::StatusOr<std::string> TextKey(const TextData& text, int version, const std::vector<DataFile>& files,
                                    std::vector<SeenFile>* seen) {
  TextChecksum sum;
  for (const int64_t choice : {int64_t{version}, static_cast<int64_t>(text.files.format),
                               static_cast<int64_t>(text.loss_on), static_cast<int64_t>(text.bad_lines),
                               static_cast<int64_t>(text.bad_bytes), static_cast<int64_t>(text.spelled_tokens),
                               int64_t{text.allow_dropped_text}, static_cast<int64_t>(text.date.size())}) {
    sum.AddNumber(choice);
  }
  sum.Add(text.date);
  std::vector<const char*> names = {"tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
                                    "additional_chat_templates/default.jinja"};
  names.insert(names.end(), std::begin(kTokenizerSettingFiles), std::end(kTokenizerSettingFiles));
  for (const char* name : names) {
    const absl::StatusOr<std::string> bytes = ReadFile(JoinPath(text.tokenizer, name), kMaxTokenizerBytes);
    if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
    sum.AddNumber(bytes.ok() ? std::ssize(*bytes) : -1);
    if (bytes.ok()) sum.Add(*bytes);
  }
  for (const DataFile& one : files) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(one.path));
    // The name may decide how the bytes are read.
    sum.AddNumber(one.rows ? 1 : 0);
    sum.AddNumber(IsNamedJsonLines(one.path) ? 1 : 0);
    sum.AddNumber(file.size());
    SHALE_ASSIGN_OR_RETURN(const uint64_t crc64, sum.AddFile(file));
    seen->push_back({.path = one.path, .content = FileContent(file.identity(), 0, file.size(), crc64)});
  }
  return absl::StrFormat("%016x%08x", sum.crc64(), sum.crc32c());
}

}  // namespace shale
