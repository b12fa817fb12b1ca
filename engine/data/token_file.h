// The files behind a TokenSource: which of a folder are taken, what they hold, and that it is whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/io/file.h"

namespace shale {

enum class TokenFormat {
  kByContent,  // An llm.c header means kLlmc, anything else kText. No text begins like that header: it is not UTF-8.
  kText,       // UTF-8 text; every byte is a token.
  kLlmc,       // Token files of llm.c: 16-bit (GPT-2) or 32-bit (Llama-3) tokens behind a header of 1,024 bytes.
};

// How tokens lie in a file.
enum class TokenEncoding { kBytes, kLlmcGpt2, kLlmcLlama3 };

constexpr int BytesPerToken(TokenEncoding encoding) {
  return encoding == TokenEncoding::kBytes ? 1 : encoding == TokenEncoding::kLlmcGpt2 ? 2 : 4;
}

// One file that was checked from its first byte to its last. Safe to read from any thread.
struct TokenFile {
  std::string path;
  TokenEncoding encoding = TokenEncoding::kBytes;
  int64_t header_bytes = 0;      // Before the first token.
  int64_t count = 0;             // Tokens.
  int64_t largest = 0;           // The largest token, as its file holds it,
  int64_t largest_position = 0;  // and where in the file it first stands, in tokens.
  InputFile::Identity identity;
  std::optional<InputFile> file;  // Open, or opened again for each read: a process may hold only so many open files.

  // out[0, n) = tokens [begin, begin + n) of this file. DataLoss if the file was replaced, changed or cut short.
  absl::Status Read(int64_t begin, int64_t n, int32_t* out) const;
};

// What lies at a path.
struct TokenFiles {
  std::vector<TokenFile> files;      // All of one encoding, none empty, in the order in which they are read.
  std::vector<std::string> skipped;  // In a folder: what was passed over, and why: "art.dat (binary)".
};

// See TokenSource::Open for the rules and the errors.
absl::StatusOr<TokenFiles> OpenTokenFiles(const std::string& path, TokenFormat format);

}  // namespace shale
