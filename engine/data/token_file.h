// The files of a TokenSource: which files of a folder are taken, and reads of their tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/data_enums.h"
#include "engine/data/data_format.h"
#include "engine/io/file.h"

namespace shale {

// A file that was checked from its first byte to its last. Safe for concurrent reads by multiple threads.
struct TokenFile {
  std::string path;
  TokenContents tokens;
  InputFile::Identity identity;
  std::optional<InputFile> file;  // If absent, each read opens the file: a process may hold only a limited number open.

  // Sets out[0, n) to tokens [begin, begin + n). Returns DataLoss if the file was replaced, changed or cut short.
  absl::Status Read(int64_t begin, int64_t n, int32_t* out) const;
};

// The token files at a path.
struct TokenFiles {
  std::vector<TokenFile> files;      // All have the same encoding. None is empty. In reading order.
  std::vector<std::string> skipped;  // Skipped files of a folder, with reasons: "art.dat (binary)".
};

// Opens and checks the files at `path`; returns at least one. See TokenSource::Open for the rules and the errors.
absl::StatusOr<TokenFiles> OpenTokenFiles(const std::string& path, DataFormat format);

}  // namespace shale
