// An immutable sequence of tokens, from text or token files.
//
// T tokens in all, S tokens in a sequence of training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/token_file.h"

namespace shale {

// A cheap copyable handle; copies and slices share the open files. Memory does not grow with the data: nothing but
// what a read asks for is held. Safe to read from any thread.
class TokenSource {
 public:
  // Opens a file or a folder, and reads it through once to check it: text must be UTF-8, an llm.c file as long as its
  // header says.
  //
  // Of a folder, the regular files (or links to them) that lie directly in it are read in byte order of their names.
  // Passed over are: subfolders; hidden files (".name"); empty files; a file met before under another name; and files
  // of another kind than `format` asks for, where a file with a zero byte among its first 8,000 is neither kind unless
  // it has an llm.c header. With kByContent a folder that holds both kinds is refused. skipped() tells what was passed
  // over. Between two text files stands one newline; llm.c files follow each other directly.
  //
  // Errors: NotFound, PermissionDenied and the like when a path cannot be read; InvalidArgument for what is empty, not
  // UTF-8 or no token file; DataLoss for a token file that was cut short.
  static absl::StatusOr<TokenSource> Open(const std::string& path, TokenFormat format = TokenFormat::kByContent);

  // Tokens of the caller's own. InvalidArgument if there is none, or a negative one.
  static absl::StatusOr<TokenSource> FromTokens(std::vector<int32_t> tokens);

  // Number of tokens, T.
  int64_t size() const { return end_ - begin_; }

  // The vocabulary that the encoding names: 256 for text, 50,257 for llm.c's GPT-2 files and 128,256 for its Llama-3
  // files; or, when a token does not fit that (or there is no encoding), the largest token + 1.
  int64_t vocabulary() const;

  // Whether tokens are the bytes of UTF-8 text.
  bool is_text() const;

  // Names what made the tokens, as far as their encoding tells: "bytes", "GPT-2 (llm.c)", "Llama 3 (llm.c)"; "" for
  // tokens of the caller's own.
  std::string tokenizer() const;

  // For people: "fortunes: 43 text files, 2576716 tokens; skipped: art.dat (binary), ...".
  std::string Describe() const;
  // What Open passed over in a folder.
  const std::vector<std::string>& skipped() const;

  // out[0, count) = tokens [begin, begin + count). REQUIRES: the range lies in [0, size()). Allocates nothing as long
  // as it succeeds, but for the path of a file that is opened again (those beyond the first 128 of a folder do not stay
  // open). DataLoss if a file changed since it was opened.
  absl::Status Read(int64_t begin, int64_t count, int32_t* out) const;

  // OK if every token of the files is below `vocabulary`; else InvalidArgument with the largest token and its place.
  absl::Status CheckVocabulary(int64_t vocabulary) const;

  // OK if there is at least one sequence: S + 1 tokens, for targets are one later than inputs.
  absl::Status CheckLength(int64_t sequence_length) const;

  // Tokens [begin, end) as a source of their own. REQUIRES: 0 <= begin <= end <= size().
  TokenSource Slice(int64_t begin, int64_t end) const;

 private:
  struct Data;

  explicit TokenSource(std::shared_ptr<const Data> data);

  std::shared_ptr<const Data> data_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

struct TokenSplit {
  TokenSource training;
  TokenSource evaluation;
};

// Holds out the last `fraction` of the tokens, rounded down, for evaluation. InvalidArgument if either part is shorter
// than one sequence, or if the fraction is not in (0, 1).
absl::StatusOr<TokenSplit> HoldOutEnd(const TokenSource& source, double fraction, int64_t sequence_length);

}  // namespace shale
