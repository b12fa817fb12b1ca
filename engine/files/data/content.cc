#include "engine/files/data/content.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/files/io/input_stream.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

// A form of files that begins with known bytes.
struct KnownForm {
  absl::string_view magic;
  int64_t offset = 0;
  absl::string_view name;
  // How to convert it, if it holds data that a user may have meant.
  absl::string_view advice;
};

constexpr absl::string_view kUnpack = "unpack it, and give the files";
constexpr absl::string_view kToRows = "convert it to JSON Lines";
constexpr absl::string_view kFromParquet =
    "convert it to JSON Lines: python3 -c 'import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], "
    "orient=\"records\", lines=True, force_ascii=False)' FILE.parquet FILE.jsonl (needs pip install pandas pyarrow)";
constexpr absl::string_view kFromArrow =
    "convert it to JSON Lines: python3 -c 'import datasets, sys; datasets.Dataset.from_file(sys.argv[1]).to_json("
    "sys.argv[2], force_ascii=False)' FILE.arrow FILE.jsonl (needs pip install datasets)";
constexpr absl::string_view kFromUtf16 = "convert it with iconv -f UTF-16 -t UTF-8";
constexpr absl::string_view kParquetMagic = "PAR1";

constexpr KnownForm kForms[] = {
    {"ARROW1", 0, "an Arrow file", kFromArrow},
    {"\xFF\xFF\xFF\xFF", 0, "an Arrow stream", kFromArrow},
    {"Obj\x01", 0, "an Avro file", kToRows},
    {"\x89HDF\r\n\x1A\n", 0, "an HDF5 file", kToRows},
    {absl::string_view("SQLite format 3\0", 16), 0, "an SQLite database", kToRows},
    {"PK\x03\x04", 0, "a zip archive", kUnpack},
    {"ustar", 257, "a tar archive", kUnpack},
    {"7z\xBC\xAF\x27\x1C", 0, "a 7z archive", kUnpack},
    {absl::string_view("\xFD"
                       "7zXZ\0",
                       6),
     0, "xz data", "unpack it with xz -d"},
    {"1AY&SY", 4, "bzip2 data", "unpack it with bzip2 -d"},
    {"\x04\x22\x4D\x18", 0, "lz4 data", "unpack it with lz4 -d"},
    {absl::string_view("\xFF\xFE\0\0", 4), 0, "text in UTF-32", "convert it with iconv -f UTF-32 -t UTF-8"},
    {"\xFF\xFE", 0, "text in UTF-16", kFromUtf16},
    {"\xFE\xFF", 0, "text in UTF-16", kFromUtf16},
    {"%PDF-", 0, "a PDF file", "write its text, for instance with pdftotext"},
    {"\x80\x02", 0, "a Python pickle", ""},
    {"\x80\x03", 0, "a Python pickle", ""},
    {"\x80\x04", 0, "a Python pickle", ""},
    {"\x80\x05", 0, "a Python pickle", ""},
    {"\x89PNG", 0, "an image", ""},
    {"\xFF\xD8\xFF", 0, "an image", ""},
    {"\x7F"
     "ELF",
     0, "a program", ""},
};

// Returns whether a file is Parquet. Text may begin as one does, so what is clean text at first must also end as one.
absl::StatusOr<bool> IsParquet(const InputFile& file, absl::string_view head, bool clean) {
  constexpr int64_t kBytes = kParquetMagic.size();
  if (!absl::StartsWith(head, kParquetMagic)) return false;
  if (!clean) return true;
  char tail[kBytes];
  if (file.size() < 2 * kBytes) return false;
  SHALE_RETURN_IF_ERROR(file.ReadAt(file.size() - kBytes, tail, kBytes));
  return absl::string_view(tail, kBytes) == kParquetMagic;
}

void SkipSpace(absl::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

// Returns whether text begins with an object of JSON, or with a list of such. Prose may begin with a brace or a
// bracket, but not with these and a name in quotes.
bool BeginsRows(absl::string_view text) {
  if (absl::StartsWith(text, kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  SkipSpace(text);
  if (absl::StartsWith(text, "[")) {
    text.remove_prefix(1);
    SkipSpace(text);
  }
  if (!absl::StartsWith(text, "{")) return false;
  text.remove_prefix(1);
  SkipSpace(text);
  return absl::StartsWith(text, "\"") || absl::StartsWith(text, "}");
}

bool IsNamedTable(absl::string_view name) {
  return absl::EndsWithIgnoreCase(name, ".csv") || absl::EndsWithIgnoreCase(name, ".tsv");
}

constexpr std::pair<absl::string_view, SplitName> kSplitWords[] = {
    {"train", SplitName::kTrain},      {"training", SplitName::kTrain}, {"validation", SplitName::kValidation},
    {"valid", SplitName::kValidation}, {"val", SplitName::kValidation}, {"dev", SplitName::kValidation},
    {"test", SplitName::kTest},        {"testing", SplitName::kTest},   {"eval", SplitName::kTest},
    {"evaluation", SplitName::kTest},
};

SplitName Both(SplitName a, SplitName b) {
  if (a == SplitName::kNone || a == b) return b;
  if (b == SplitName::kNone) return a;
  const auto is_held_out = [](SplitName split) { return split == SplitName::kValidation || split == SplitName::kTest; };
  return is_held_out(a) && is_held_out(b) ? SplitName::kTest : SplitName::kSeveral;
}

// Returns the split that the words of a name say.
SplitName SplitOfWords(absl::string_view name) {
  SplitName split = SplitName::kNone;
  for (const absl::string_view word : absl::StrSplit(name, absl::ByAnyChar("-._ 0123456789"))) {
    for (const auto& [known, of] : kSplitWords) {
      if (absl::AsciiStrToLower(word) == known) split = Both(split, of);
    }
  }
  return split;
}

}  // namespace

bool IsNamedJsonLines(absl::string_view path) {
  const absl::string_view name = WithoutPacking(path);
  return absl::EndsWithIgnoreCase(name, ".jsonl") || absl::EndsWithIgnoreCase(name, ".ndjson");
}

absl::StatusOr<Content> RecognizeContent(const InputFile& file) {
  Content content;
  std::string head;
  SHALE_ASSIGN_OR_RETURN(content.packed, IsPacked(file));
  if (content.packed) {
    SHALE_ASSIGN_OR_RETURN(InputStream stream, InputStream::Open(file.path()));
    SHALE_RETURN_IF_ERROR(stream.Append(kHeadBytes, &head));
  } else {
    head.resize(std::min(file.size(), kHeadBytes));
    SHALE_RETURN_IF_ERROR(file.ReadAt(0, head.data(), std::ssize(head)));
  }
  // Prose may begin with the letters of some forms, but what has these forms is no clean text.
  const bool clean = kTextFormat.recognizes(head) && Utf8Validator().Feed(head);
  SHALE_ASSIGN_OR_RETURN(const bool parquet, IsParquet(file, head, clean));
  if (parquet) {
    content.kind = ContentKind::kUnread;
    content.name = "a Parquet file";
    content.advice = std::string(kFromParquet);
    return content;
  }
  for (const KnownForm& form : kForms) {
    if (clean || std::ssize(head) < form.offset ||
        !absl::StartsWith(absl::string_view(head).substr(form.offset), form.magic)) {
      continue;
    }
    content.kind = form.advice.empty() ? ContentKind::kBinary : ContentKind::kUnread;
    content.name = std::string(form.name);
    content.advice = std::string(form.advice);
    return content;
  }
  const absl::string_view name = WithoutPacking(file.path());
  if (const DataFormatEntry* format = RecognizeFormat(head); format != nullptr && format != &kTextFormat) {
    content.kind = ContentKind::kTokens;
    content.name = absl::StrCat(format->article, " ", format->file);
    content.format = format;
  } else if (IsNamedJsonLines(name) || absl::EndsWithIgnoreCase(name, ".json") || BeginsRows(head)) {
    content = {.kind = ContentKind::kRows, .name = "rows of JSON", .packed = content.packed, .is_text = true};
  } else if (format == nullptr) {
    content.kind = ContentKind::kBinary;
    content.name = "binary";
  } else if (IsNamedTable(name)) {
    content.kind = ContentKind::kUnread;
    content.name = "a table (CSV)";
    content.advice =
        "convert it to JSON Lines: python3 -c 'import pandas, sys; pandas.read_csv(sys.argv[1]).to_json(sys.argv[2], "
        "orient=\"records\", lines=True, force_ascii=False)' FILE.csv FILE.jsonl (needs pip install pandas), or set "
        "data.format=TEXT to train on its text as it stands";
    content.is_text = true;
  } else {
    content = {.kind = ContentKind::kText, .name = "text", .packed = content.packed, .is_text = true};
  }
  return content;
}

absl::Status RefuseContent(const std::string& path, const Content& content) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is ", content.name, ", which is not read; ", content.advice));
}

absl::Status NotUtf8(const InputFile& file, uint8_t byte, int64_t offset, int64_t line) {
  const absl::StatusOr<Content> content = RecognizeContent(file);
  if (content.ok() && content->kind == ContentKind::kUnread && !content->is_text) {
    return RefuseContent(file.path(), *content);
  }
  std::string advice =
      "if it is text in another encoding, convert it, for instance with iconv -f WINDOWS-1252 -t UTF-8; with a "
      "tokenizer, data.bad_bytes=REPLACE reads such bytes as U+FFFD";
  if (content.ok() && content->kind != ContentKind::kText && content->kind != ContentKind::kRows) {
    advice = absl::StrCat("it is ", content->name, ", not text");
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is not UTF-8: byte 0x%02X at offset %d (line %d) does not begin a complete character; %s",
                      file.path(), byte, offset, line, advice));
}

SplitName SplitNameOf(absl::string_view path) {
  SplitName split = SplitName::kNone;
  for (const absl::string_view name : absl::StrSplit(path, '/')) split = Both(split, SplitOfWords(name));
  return split;
}

absl::string_view ToString(SplitName split) {
  switch (split) {
    case SplitName::kTrain: return "train";
    case SplitName::kValidation: return "validation";
    case SplitName::kTest: return "test";
    default: SHALE_CHECK(false) << "no split"; return "";
  }
}

}  // namespace shale
