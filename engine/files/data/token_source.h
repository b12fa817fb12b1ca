// TokenSource: an immutable sequence of tokens from text files, token files or memory. OpenTokenFiles finds and checks
// its files.
//
// T tokens in all, S tokens in a training sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/files/data/data_enums.h"
#include "engine/files/data/data_files.h"
#include "engine/files/data/data_format.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"

namespace shale {

// A token file that was checked from its first byte to its last. Safe for concurrent reads by multiple threads.
struct TokenFile {
  std::string path;
  TokenContents tokens;
  std::optional<FileContent> content;  // Of the tokens. Always there in a file that was checked.
  std::string index_path;  // The file that was checked, which says where the tokens are: `path`, or its index.
  InputFile::Identity index_identity;
  std::optional<InputFile> file;  // If absent, each read opens the file, because a process may hold only so many open.

  // Sets out[0, n) to tokens [begin, begin + n). Returns DataLoss if the file has other tokens than when it was
  // checked, or was cut short. Only reads the file again to tell if its time or place is another.
  absl::Status Read(int64_t begin, int64_t n, int32_t* out) const;
};

// The token files at a path.
struct TokenFiles {
  std::vector<TokenFile> files;      // In reading order. All have the same encoding, and none is empty.
  std::vector<std::string> skipped;  // Skipped entries of a folder, with reasons: "art.dat (binary)".
};

// Opens and checks the file or the folder at `path`. On success returns at least one file. See TokenSource::Open for
// the rules and the errors.
absl::StatusOr<TokenFiles> OpenTokenFiles(const std::string& path, const DataFilesOptions& options);

// What token files do not say about tokens that were made from text.
struct TextTokens {
  std::string path;        // The text, for messages.
  std::string tokenizer;   // Distinguishes one tokenizer from another. Checkpoints record it.
  int64_t vocabulary = 0;  // The vocabulary of the tokenizer.
  // A file with one bit for each token: bit i % 8 of byte i / 8 is 1 if token i counts in the loss. Empty if all count.
  std::string counts_path;
  // A file with an int64 for each document, ascending: the position after its last token. The last one is the number of
  // tokens.
  std::string documents_path;
};

// A handle that is cheap to copy: copies and slices share the open files. Keeps no tokens of files in memory, so that
// memory does not grow with the data. Safe for concurrent reads by multiple threads.
class TokenSource {
 public:
  // Opens a file or a folder, and reads it once from end to end to check it: text must be UTF-8, and a file with a
  // header must be as long as its header says.
  //
  // ListDataFiles finds the files of a folder. Refuses a folder whose files differ in their encoding. Puts one newline
  // between two text files; files of other formats follow each other directly.
  //
  // Returns NotFound, PermissionDenied and the like if a path cannot be read, InvalidArgument for data that is empty,
  // not UTF-8 or not a token file, and DataLoss for a token file that was cut short or is damaged.
  static absl::StatusOr<TokenSource> Open(const std::string& path, const DataFilesOptions& options);
  static absl::StatusOr<TokenSource> Open(const std::string& path, DataFormat format = DataFormat::kByContent);

  // Opens llm.c token files that were made from text. Returns the errors of Open.
  static absl::StatusOr<TokenSource> OpenText(const std::string& path, const TextTokens& text);

  // Makes a source of the given tokens. Returns InvalidArgument if there are none, or a negative one.
  static absl::StatusOr<TokenSource> FromTokens(std::vector<int32_t> tokens);

  // Returns T, the number of tokens.
  int64_t size() const { return end_ - begin_; }

  // Returns the format of the files; kByContent for FromTokens.
  DataFormat format() const;
  // Returns whether the tokens are the bytes of UTF-8 text.
  bool is_text() const { return format() == DataFormat::kText; }

  // Returns whether the tokens were made from text (OpenText).
  bool from_text() const;

  // Returns the vocabulary size that the encoding implies, for example 256 for text. Returns the largest token + 1 if
  // that is more, or if the encoding implies none.
  int64_t vocabulary() const;

  // Returns the name of the tokenizer that the encoding implies: "bytes", "GPT-2 (llm.c)"; "" for FromTokens.
  std::string tokenizer() const;

  // Returns the token that begins every document of this encoding, or -1 if it has none.
  int64_t document_begin_token() const;
  // Returns whether the data says itself where documents begin: tokens of text and Megatron files do.
  bool knows_documents() const;
  // Returns the positions in [1, size()) at which a document begins, ascending. If the data does not know its
  // documents, these are the positions at which files begin. Takes 8 bytes of memory for each. Returns DataLoss if the
  // file that holds the positions changed since it was opened, or is damaged.
  absl::StatusOr<std::vector<int64_t>> DocumentBegins() const;

  // Returns a checksum of all tokens of the data in their order, also of those outside this slice. It depends neither
  // on the paths of files nor on how they divide the tokens. Costs nothing: Open made it as it checked the files.
  uint64_t TokensDigest() const;
  // Returns a checksum of the positions at which the documents of all data begin. Returns the errors of DocumentBegins.
  absl::StatusOr<uint64_t> DocumentsDigest() const;

  // Returns a description for messages: "fortunes: 43 text files, 2576716 tokens; skipped: art.dat (binary), ...".
  std::string Describe() const;
  // Returns the entries of a folder that Open skipped, each with the reason.
  const std::vector<std::string>& skipped() const;

  // Sets out[0, count) to tokens [begin, begin + count). Returns DataLoss if a file changed since it was opened.
  // Allocates nothing on success, except for the path of a file that is opened again (files beyond the first 128 of a
  // folder do not stay open). REQUIRES: the range lies in [0, size()).
  absl::Status Read(int64_t begin, int64_t count, int32_t* out) const;

  // Returns whether some tokens do not count in the loss.
  bool has_counts() const;
  // Sets out[0, count) to kMaskedTarget where token `begin` + i does not count, and leaves the others. Returns DataLoss
  // if the file changed since it was opened. Allocates nothing. REQUIRES: the range lies in [0, size()).
  absl::Status MaskTargets(int64_t begin, int64_t count, int32_t* out) const;

  // Returns OK if every token of the data, including tokens outside this slice, is below `vocabulary`. Otherwise
  // returns InvalidArgument with the largest token and its position.
  absl::Status CheckVocabulary(int64_t vocabulary) const;

  // Returns OK if there is at least one sequence: S + 1 tokens, because targets are one token later than inputs.
  // Otherwise returns InvalidArgument.
  absl::Status CheckLength(int64_t sequence_length) const;

  // Returns tokens [begin, end) as another source. REQUIRES: 0 <= begin <= end <= size().
  TokenSource Slice(int64_t begin, int64_t end) const;

 private:
  struct Data;

  explicit TokenSource(std::shared_ptr<const Data> data);
  static absl::StatusOr<std::shared_ptr<Data>> OpenData(const std::string& path, const DataFilesOptions& options);
  // Passes the positions at which documents begin to `add`, ascending, those of all data.
  absl::Status VisitDocumentBegins(const std::function<void(int64_t)>& add) const;

  std::shared_ptr<const Data> data_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

struct TokenSplit {
  TokenSource training;
  TokenSource evaluation;
};

// Splits a source into training data and evaluation data, which is the last `fraction` of the tokens, rounded down.
// Returns InvalidArgument if either part is shorter than one sequence, or if the fraction is not in (0, 1).
absl::StatusOr<TokenSplit> HoldOutEnd(const TokenSource& source, double fraction, int64_t sequence_length);

}  // namespace shale
