// The formats of token files. Everything that distinguishes a format from the others is in its DataFormatEntry, in a
// separate file. To add a format, write that file and add a value to DataFormat and its name to the two lists at the
// end of this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/data_enums.h"
#include "engine/files/io/file.h"

namespace shale {

// The vocabulary size of text, whose tokens are bytes.
inline constexpr int64_t kTextVocabulary = 256;

// Says how a file encodes tokens, which are unsigned little-endian integers, one after another.
struct TokenEncoding {
  DataFormat format = DataFormat::kByContent;  // kByContent: the tokens are not from a file.
  // Distinguishes one tokenizer from another, in static memory. Must never change, because checkpoints record it.
  absl::string_view tokenizer;
  int64_t vocabulary = 0;             // The size of the tokenizer's vocabulary; 0: not known.
  int bytes_per_token = 1;            // 1, 2 or 4.
  int64_t document_begin_token = -1;  // The token that begins every document; -1: there is none.

  bool operator==(const TokenEncoding&) const = default;
};

// Describes the tokens in a file.
struct TokenContents {
  TokenEncoding encoding;
  int64_t header_bytes = 0;      // Bytes before the first token.
  int64_t count = 0;             // Number of tokens.
  int64_t largest = 0;           // The largest token in the file.
  int64_t largest_position = 0;  // Index in the file of the first token equal to `largest`.
  uint64_t crc64 = 0;            // The checksum of the bytes of the tokens (Crc64).

  int64_t bytes() const { return count * encoding.bytes_per_token; }  // Of the tokens.
};

// How many bytes at the start of a file DataFormatEntry::recognizes sees. Git searches as many for a zero byte.
inline constexpr int64_t kHeadBytes = 8000;

struct DataFormatEntry {
  DataFormat format = DataFormat::kByContent;
  // Words for messages, in static memory.
  absl::string_view name;           // "llm.c"
  absl::string_view article, file;  // "an", "llm.c token file"
  absl::string_view encodings;      // "llm.c for GPT-2, llm.c for Llama-3"
  // Returns whether a file is of this format. `head` is its first kHeadBytes bytes, or all of a shorter file.
  bool (*recognizes)(absl::string_view head) = nullptr;
  // Checks a file from its first byte to its last and returns what it holds. Returns InvalidArgument for a file of
  // another format, DataLoss for one that was cut short or is damaged.
  absl::StatusOr<TokenContents> (*check)(const InputFile& file) = nullptr;
  // Returns the path of the file that has the tokens of `file`. Null: they are in the file itself.
  std::string (*tokens_path)(absl::string_view file) = nullptr;
  // Returns the positions at which documents begin, ascending, from a file that was checked. Null: the format does not
  // know them.
  absl::StatusOr<std::vector<int64_t>> (*document_begins)(const InputFile& file) = nullptr;
};

// Reads all tokens once and sets `largest`, `largest_position` and `crc64` of `contents`, whose other fields must be
// set. The `check` of every format must call it. Passes the bytes of the tokens to `visit`, if there is one, in order
// and in large pieces, and returns the first error of `visit`. Returns DataLoss for a token that does not fit int32_t.
absl::Status ScanTokens(const InputFile& file, TokenContents* contents,
                        const std::function<absl::Status(absl::string_view bytes)>& visit = nullptr);

// Returns DataLoss: the file is damaged or was cut short. `what` says what is wrong with it.
absl::Status DamagedFile(const InputFile& file, absl::string_view what);

// Returns the format that recognizes the first kHeadBytes bytes of a file, or all of a shorter one. Returns null if
// none does: the file is binary. RecognizeContent also knows forms that are not read.
const DataFormatEntry* RecognizeFormat(absl::string_view head);

// Returns the entry of a format. REQUIRES: `format` is neither kByContent nor kJsonLines.
const DataFormatEntry& EntryOf(DataFormat format);
// Returns whether the files of a format hold tokens, and not text that a tokenizer may read.
bool HoldsTokens(DataFormat format);

// The entries, each defined in a separate file, and the list of all. Entries try to recognize a file from last to
// first, so text, which recognizes any bytes without a zero, must stand first.
extern const DataFormatEntry kTextFormat, kLlmcFormat, kMegatronFormat, kNpyFormat;
inline constexpr const DataFormatEntry* kDataFormats[] = {&kTextFormat, &kLlmcFormat, &kMegatronFormat, &kNpyFormat};

}  // namespace shale
