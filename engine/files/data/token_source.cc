#include "engine/files/data/token_source.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/data_source.h"
#include "engine/files/io/checksums.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

constexpr size_t kSkippedNamed = 5;  // Describe names this many and counts the rest.
constexpr int64_t kEndsPerRead = int64_t{1} << 14;

// Returns DataFormatEntry::document_begins.
auto DocumentBeginsOf(DataFormat format) {
  return format == DataFormat::kByContent ? nullptr : EntryOf(format).document_begins;
}

// Passes the positions in a file of TextTokens::documents_path to `add`.
absl::Status ReadEnds(const InputFile& file, int64_t tokens, const std::function<void(int64_t)>& add) {
  SHALE_RETURN_IF_ERROR(file.CheckUnchangedSince(file.identity()));
  constexpr int64_t kBytes = sizeof(int64_t);
  const int64_t documents = file.size() / kBytes;
  std::vector<int64_t> ends(std::min(kEndsPerRead, documents));
  bool good = file.size() % kBytes == 0;
  int64_t last = 0;
  for (int64_t at = 0; at < documents; at += kEndsPerRead) {
    const int64_t count = std::min(kEndsPerRead, documents - at);
    SHALE_RETURN_IF_ERROR(file.ReadAt(at * kBytes, ends.data(), count * kBytes));
    for (int64_t i = 0; i < count; ++i) {
      good = good && ends[i] > last;
      last = ends[i];
      add(last);
    }
  }
  if (good && last == tokens) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(file.path(), " is damaged: the ends of its documents do not rise to ", tokens,
                                          ", the number of tokens"));
}

}  // namespace

// What all copies and slices share. The tokens are in `files`, or in `tokens` if there are no files.
struct TokenSource::Data {
  std::string name;
  TokenFiles files;
  TokenEncoding encoding;      // The encoding of all files.
  std::vector<int64_t> first;  // Position of each file's first token.
  std::vector<int32_t> tokens;
  int64_t size = 0;
  int64_t largest = 0;
  int64_t largest_position = 0;
  std::string largest_path;
  uint64_t crc64 = 0;  // Of the bytes of all tokens.
  TextTokens text;
  std::optional<InputFile> counts;     // The file at text.counts_path, if there is one.
  std::optional<InputFile> documents;  // The file at text.documents_path, if there is one.
};

TokenSource::TokenSource(std::shared_ptr<const Data> data) : data_(std::move(data)), end_(data_->size) {}

absl::StatusOr<TokenSource> TokenSource::Open(const std::string& path, const DataFilesOptions& options) {
  SHALE_ASSIGN_OR_RETURN(std::shared_ptr<const Data> data, OpenData(path, options));
  return TokenSource(std::move(data));
}

absl::StatusOr<TokenSource> TokenSource::Open(const std::string& path, DataFormat format) {
  return Open(path, DataFilesOptions{.format = format});
}

absl::StatusOr<TokenSource> TokenSource::OpenText(const std::string& path, const TextTokens& text) {
  SHALE_ASSIGN_OR_RETURN(const std::shared_ptr<Data> data, OpenData(path, {.format = DataFormat::kLlmc}));
  data->text = text;
  data->name = text.path;
  data->largest_path = text.path;
  data->files.skipped.clear();  // What lies beside the tokens belongs to them.
  if (!text.counts_path.empty()) {
    SHALE_ASSIGN_OR_RETURN(InputFile counts, InputFile::Open(text.counts_path));
    if (counts.size() != CeilDivide(data->size, 8)) {
      return absl::DataLossError(absl::StrCat(text.counts_path, " has ", counts.size(), " bytes; ", data->size,
                                              " tokens need ", CeilDivide(data->size, 8)));
    }
    data->counts = std::move(counts);
  }
  SHALE_ASSIGN_OR_RETURN(InputFile documents, InputFile::Open(text.documents_path));
  data->documents = std::move(documents);
  return TokenSource(data);
}

absl::StatusOr<std::shared_ptr<TokenSource::Data>> TokenSource::OpenData(const std::string& path,
                                                                         const DataFilesOptions& options) {
  auto data = std::make_shared<Data>();
  data->name = path;
  SHALE_ASSIGN_OR_RETURN(data->files, OpenTokenFiles(path, options));
  data->encoding = data->files.files[0].tokens.encoding;
  data->largest = -1;
  for (const TokenFile& file : data->files.files) {
    // Count the newline between two text files.
    if (!data->first.empty() && data->encoding.format == DataFormat::kText) {
      ++data->size;
      data->crc64 = Crc64("\n", data->crc64);
    }
    data->first.push_back(data->size);
    if (file.tokens.largest > data->largest) {
      data->largest = file.tokens.largest;
      data->largest_position = data->size + file.tokens.largest_position;
      data->largest_path = file.path;
    }
    data->size += file.tokens.count;
    data->crc64 = Crc64OfBoth(data->crc64, file.tokens.crc64, file.tokens.bytes());
  }
  return data;
}

absl::StatusOr<TokenSource> TokenSource::FromTokens(std::vector<int32_t> tokens) {
  if (tokens.empty()) return absl::InvalidArgumentError("no tokens were given");
  const auto smallest = std::min_element(tokens.begin(), tokens.end());
  if (*smallest < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", *smallest, " at position ", smallest - tokens.begin(), " is negative"));
  }
  const auto largest = std::max_element(tokens.begin(), tokens.end());
  auto data = std::make_shared<Data>();
  data->name = "tokens in memory";
  data->size = tokens.size();
  data->largest = *largest;
  data->largest_position = largest - tokens.begin();
  data->largest_path = data->name;
  data->tokens = std::move(tokens);
  data->crc64 = Crc64(absl::string_view(reinterpret_cast<const char*>(data->tokens.data()),
                                        data->tokens.size() * sizeof(data->tokens[0])));
  return TokenSource(std::move(data));
}

DataFormat TokenSource::format() const { return data_->encoding.format; }

bool TokenSource::from_text() const { return !data_->text.path.empty(); }

int64_t TokenSource::vocabulary() const {
  return std::max(from_text() ? data_->text.vocabulary : data_->encoding.vocabulary, data_->largest + 1);
}

std::string TokenSource::tokenizer() const {
  return from_text() ? data_->text.tokenizer : std::string(data_->encoding.tokenizer);
}

bool TokenSource::has_counts() const { return data_->counts.has_value(); }

absl::Status TokenSource::MaskTargets(int64_t begin, int64_t count, int32_t* out) const {
  SHALE_CHECK(begin >= 0 && count >= 0 && begin <= size() - count) << data_->name << ": " << begin << ", " << count;
  if (!has_counts()) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(data_->counts->CheckUnchangedSince(data_->counts->identity()));
  constexpr int64_t kBytes = 512;
  uint8_t bits[kBytes];
  const int64_t first = begin_ + begin, end = first + count;
  for (int64_t byte = first / 8; byte * 8 < end; byte += kBytes) {
    const int64_t bytes = std::min(kBytes, CeilDivide(end, 8) - byte);
    SHALE_RETURN_IF_ERROR(data_->counts->ReadAt(byte, bits, bytes));
    for (int64_t i = std::max(first, byte * 8); i < std::min(end, (byte + bytes) * 8); ++i) {
      if ((bits[i / 8 - byte] >> (i % 8) & 1) == 0) out[i - first] = kMaskedTarget;
    }
  }
  return absl::OkStatus();
}

int64_t TokenSource::document_begin_token() const { return from_text() ? -1 : data_->encoding.document_begin_token; }

bool TokenSource::knows_documents() const {
  return data_->documents.has_value() || DocumentBeginsOf(format()) != nullptr;
}

absl::Status TokenSource::VisitDocumentBegins(const std::function<void(int64_t)>& add) const {
  if (data_->documents) return ReadEnds(*data_->documents, data_->size, add);
  const auto begins_of = DocumentBeginsOf(format());
  for (size_t i = 0; i < data_->files.files.size(); ++i) {
    const int64_t first = data_->first[i];
    add(first);
    if (begins_of == nullptr) continue;
    const TokenFile& file = data_->files.files[i];
    SHALE_ASSIGN_OR_RETURN(const InputFile index, InputFile::Open(file.index_path));
    SHALE_RETURN_IF_ERROR(index.CheckUnchangedSince(file.index_identity));
    SHALE_ASSIGN_OR_RETURN(const std::vector<int64_t> in_file, begins_of(index));
    for (const int64_t begin : in_file) add(first + begin);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> TokenSource::DocumentBegins() const {
  std::vector<int64_t> begins;
  SHALE_RETURN_IF_ERROR(VisitDocumentBegins([&](int64_t at) {
    const bool known = !begins.empty() && at - begin_ <= begins.back();
    if (at > begin_ && at < end_ && !known) begins.push_back(at - begin_);
  }));
  return begins;
}

uint64_t TokenSource::TokensDigest() const { return data_->crc64; }

absl::StatusOr<uint64_t> TokenSource::DocumentsDigest() const {
  uint64_t crc64 = 0;
  int64_t last = 0;
  SHALE_RETURN_IF_ERROR(VisitDocumentBegins([&](int64_t at) {
    if (at <= last || at >= data_->size) return;
    last = at;
    crc64 = Crc64(absl::string_view(reinterpret_cast<const char*>(&at), sizeof(at)), crc64);
  }));
  return crc64;
}

const std::vector<std::string>& TokenSource::skipped() const { return data_->files.skipped; }

std::string TokenSource::Describe() const {
  const size_t files = data_->files.files.size();
  std::string text = absl::StrCat(data_->name, ": ");
  if (files > 0) absl::StrAppend(&text, files, " ", EntryOf(format()).name, files == 1 ? " file, " : " files, ");
  if (size() != data_->size) absl::StrAppend(&text, size(), " of ");
  absl::StrAppend(&text, data_->size, " tokens");
  const std::vector<std::string>& skipped = data_->files.skipped;
  if (skipped.empty()) return text;
  const size_t named = std::min(skipped.size(), kSkippedNamed);
  absl::StrAppend(&text, "; skipped: ", absl::StrJoin(skipped.begin(), skipped.begin() + named, ", "));
  if (named < skipped.size()) absl::StrAppend(&text, " and ", skipped.size() - named, " more");
  return text;
}

absl::Status TokenSource::Read(int64_t begin, int64_t count, int32_t* out) const {
  SHALE_CHECK(begin >= 0 && count >= 0 && begin <= size() - count)
      << data_->name << ": tokens [" << begin << ", " << begin << " + " << count << ") of " << size();
  int64_t at = begin_ + begin;
  const int64_t end = at + count;
  if (data_->files.files.empty()) {
    std::copy(data_->tokens.begin() + at, data_->tokens.begin() + end, out);
    return absl::OkStatus();
  }
  const std::vector<int64_t>& first = data_->first;
  size_t index = std::upper_bound(first.begin(), first.end(), at) - first.begin() - 1;
  while (at < end) {
    const TokenFile& file = data_->files.files[index];
    const int64_t offset = at - first[index];
    if (offset < file.tokens.count) {
      const int64_t n = std::min(end - at, file.tokens.count - offset);
      SHALE_RETURN_IF_ERROR(file.Read(offset, n, out));
      at += n;
      out += n;
    }
    // If tokens are still missing, another file follows. A position between the two files is the newline.
    if (at < end && at < first[++index]) {
      *out++ = '\n';
      ++at;
    }
  }
  return absl::OkStatus();
}

absl::Status TokenSource::CheckVocabulary(int64_t vocabulary) const {
  if (data_->largest < vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(data_->largest_path, ": token ", data_->largest, " at position ",
                                                 data_->largest_position, " does not fit a vocabulary of ", vocabulary,
                                                 "; the model needs at least ", data_->largest + 1,
                                                 is_text() ? " (256 for any text)" : ""));
}

absl::Status TokenSource::CheckLength(int64_t sequence_length) const {
  if (size() > sequence_length) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(data_->name, ": ", size(), size() == 1 ? " token" : " tokens", " found, but one sequence of ",
                   sequence_length, " takes ", sequence_length + 1,
                   " (targets are one token later than inputs); give more data or a sequence length of at most ",
                   std::max<int64_t>(size() - 1, 0)));
}

TokenSource TokenSource::Slice(int64_t begin, int64_t end) const {
  SHALE_CHECK(0 <= begin && begin <= end && end <= size())
      << data_->name << ": slice [" << begin << ", " << end << ") of " << size();
  TokenSource slice = *this;
  slice.begin_ = begin_ + begin;
  slice.end_ = begin_ + end;
  return slice;
}

absl::StatusOr<TokenSplit> HoldOutEnd(const TokenSource& source, double fraction, int64_t sequence_length) {
  if (!(fraction > 0 && fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("the fraction held out must lie between 0 and 1; found ", fraction));
  }
  const int64_t held_out = static_cast<int64_t>(std::floor(fraction * static_cast<double>(source.size())));
  TokenSplit split{.training = source.Slice(0, source.size() - held_out),
                   .evaluation = source.Slice(source.size() - held_out, source.size())};
  for (const auto& [part, name] :
       {std::pair(&split.training, "training"), std::pair(&split.evaluation, "evaluation")}) {
    const absl::Status status = part->CheckLength(sequence_length);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("with ", fraction, " of the data held out, too little is left for ", name, ": ",
                                       status.message()));
    }
  }
  return split;
}

}  // namespace shale
