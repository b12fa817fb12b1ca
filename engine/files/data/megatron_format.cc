// The format of Megatron-LM's token files: an index, NAME.idx, and the tokens of all sequences one after another,
// NAME.bin. The index has a header of 34 bytes, the length of each of S sequences (int32) and its offset in NAME.bin
// (int64), and D boundaries of documents (int64).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/data/data_format.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr int64_t kMegatronHeaderBytes = 34;
constexpr int64_t kEntriesAtOnce = 1 << 14;

struct Header {
  uint64_t version = 0, sequences = 0, documents = 0;
  uint8_t type = 0;
};

// Returns how many bytes a token of this type has, or 0 if the type is not supported.
int BytesOf(uint8_t type) {
  switch (type) {
    case 1: return 1;
    case 4: return 4;
    case 8: return 2;
    default: return 0;
  }
}

absl::StatusOr<Header> ReadHeader(const InputFile& index) {
  char bytes[kMegatronHeaderBytes];
  if (index.size() < kMegatronHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(index.path(), " is not an index of Megatron: it is too short"));
  }
  SHALE_RETURN_IF_ERROR(index.ReadAt(0, bytes, kMegatronHeaderBytes));
  if (absl::string_view(bytes, kMegatronMagic.size()) != kMegatronMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat(index.path(), " is not an index of Megatron: it does not begin with MMIDIDX; give the .idx file"));
  }
  Header header;
  std::memcpy(&header.version, bytes + 9, 8);
  header.type = static_cast<uint8_t>(bytes[17]);
  std::memcpy(&header.sequences, bytes + 18, 8);
  std::memcpy(&header.documents, bytes + 26, 8);
  if (header.version != 1 || BytesOf(header.type) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(index.path(), ": version ", header.version, " and type ", header.type,
                     " of tokens; supported: version 1 with the types 1 (u8), 4 (i32) and 8 (u16)"));
  }
  const auto size = static_cast<uint64_t>(index.size());
  const bool overflows = header.sequences > size || header.documents > size;
  const uint64_t wanted = overflows ? 0 : kMegatronHeaderBytes + 12 * header.sequences + 8 * header.documents;
  if (wanted > 0 && header.sequences > 0 && size == wanted + header.sequences) {
    return absl::InvalidArgumentError(
        absl::StrCat(index.path(), " has a mode for each sequence, as data with images has; only text is supported"));
  }
  if (size != wanted) {
    return DamagedFile(index, absl::StrCat("its size ", index.size(), " is not that of ", header.sequences,
                                           " sequences and ", header.documents, " boundaries of documents"));
  }
  return header;
}

// Returns how many bytes all sequences have together. Refuses sequences that do not follow each other.
absl::StatusOr<int64_t> CheckSequences(const InputFile& index, const Header& header) {
  const int64_t sequences = static_cast<int64_t>(header.sequences), bytes_per_token = BytesOf(header.type);
  std::vector<int32_t> lengths(kEntriesAtOnce);
  std::vector<int64_t> offsets(kEntriesAtOnce);
  int64_t end = 0;
  for (int64_t at = 0; at < sequences; at += kEntriesAtOnce) {
    const int64_t n = std::min(kEntriesAtOnce, sequences - at);
    SHALE_RETURN_IF_ERROR(index.ReadAt(kMegatronHeaderBytes + 4 * at, lengths.data(), 4 * n));
    SHALE_RETURN_IF_ERROR(index.ReadAt(kMegatronHeaderBytes + 4 * sequences + 8 * at, offsets.data(), 8 * n));
    for (int64_t i = 0; i < n; ++i) {
      if (lengths[i] < 0 || offsets[i] != end) {
        return DamagedFile(
            index, absl::StrCat("sequence ", at + i, " has the length ", lengths[i], " and the offset ", offsets[i],
                                "; wanted the offset ", end, ", because sequences must follow each other"));
      }
      end += lengths[i] * bytes_per_token;
    }
  }
  return end;
}

absl::Status CheckDocuments(const InputFile& index, const Header& header) {
  const int64_t documents = static_cast<int64_t>(header.documents);
  std::vector<int64_t> boundaries(kEntriesAtOnce);
  int64_t before = 0;
  for (int64_t at = 0; at < documents; at += kEntriesAtOnce) {
    const int64_t n = std::min(kEntriesAtOnce, documents - at);
    SHALE_RETURN_IF_ERROR(index.ReadAt(kMegatronHeaderBytes + 12 * static_cast<int64_t>(header.sequences) + 8 * at,
                                       boundaries.data(), 8 * n));
    for (int64_t i = 0; i < n; ++i) {
      const bool is_first = at + i == 0;
      if (is_first ? boundaries[i] != 0 : boundaries[i] < before) {
        return DamagedFile(index, absl::StrCat("document ", at + i, " begins at sequence ", boundaries[i], "; wanted ",
                                               is_first ? "0" : absl::StrCat("at least ", before)));
      }
      before = boundaries[i];
    }
  }
  if (documents == 0 || before != static_cast<int64_t>(header.sequences)) {
    return DamagedFile(index, absl::StrCat("the last document ends at sequence ", before, "; wanted ", header.sequences,
                                           ", the number of sequences"));
  }
  return absl::OkStatus();
}

std::string TokensPath(absl::string_view index) {
  return absl::StrCat(absl::EndsWith(index, ".idx") ? index.substr(0, index.size() - 4) : index, ".bin");
}

absl::StatusOr<std::vector<int64_t>> DocumentBegins(const InputFile& index) {
  SHALE_ASSIGN_OR_RETURN(const Header header, ReadHeader(index));
  const int64_t sequences = static_cast<int64_t>(header.sequences);
  std::vector<int64_t> begins(header.documents), offsets(kEntriesAtOnce);
  SHALE_RETURN_IF_ERROR(index.ReadAt(kMegatronHeaderBytes + 12 * sequences, begins.data(), 8 * std::ssize(begins)));
  size_t next = 0;
  for (int64_t at = 0; at < sequences; at += kEntriesAtOnce) {
    const int64_t n = std::min(kEntriesAtOnce, sequences - at);
    SHALE_RETURN_IF_ERROR(index.ReadAt(kMegatronHeaderBytes + 4 * sequences + 8 * at, offsets.data(), 8 * n));
    for (; next < begins.size() && begins[next] < at + n; ++next) {
      // CheckMegatron refused such an index, so the file has changed since.
      if (begins[next] < at) {
        return DamagedFile(index, absl::StrCat("document ", next, " does not follow the one before"));
      }
      begins[next] = offsets[begins[next] - at] / BytesOf(header.type);
    }
  }
  begins.resize(next);  // Drops boundaries after the last sequence, where no document begins.
  return begins;
}

bool RecognizesMegatron(absl::string_view head) { return absl::StartsWith(head, kMegatronMagic); }

absl::StatusOr<TokenContents> CheckMegatron(const InputFile& index) {
  SHALE_ASSIGN_OR_RETURN(const Header header, ReadHeader(index));
  SHALE_ASSIGN_OR_RETURN(const int64_t bytes, CheckSequences(index, header));
  SHALE_RETURN_IF_ERROR(CheckDocuments(index, header));
  SHALE_ASSIGN_OR_RETURN(const InputFile tokens, InputFile::Open(TokensPath(index.path())));
  if (tokens.size() != bytes) {
    return DamagedFile(
        tokens, absl::StrCat("it has ", tokens.size(), " bytes, and the sequences of ", index.path(), " have ", bytes));
  }
  const int bytes_per_token = BytesOf(header.type);
  TokenContents contents{
      .encoding = {.format = DataFormat::kMegatron, .tokenizer = "Megatron", .bytes_per_token = bytes_per_token},
      .count = bytes / bytes_per_token};
  SHALE_RETURN_IF_ERROR(ScanTokens(tokens, &contents));
  return contents;
}

}  // namespace

const DataFormatEntry kMegatronFormat = {.format = DataFormat::kMegatron,
                                         .name = "Megatron",
                                         .article = "a",
                                         .file = "Megatron index",
                                         .encodings = "Megatron",
                                         .recognizes = RecognizesMegatron,
                                         .check = CheckMegatron,
                                         .tokens_path = TokensPath,
                                         .document_begins = DocumentBegins};

}  // namespace shale
