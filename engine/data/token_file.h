// Finds and checks the files of a TokenSource, and reads their tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/data_files.h"
#include "engine/data/data_format.h"
#include "engine/io/file.h"
#include "engine/io/file_content.h"

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

}  // namespace shale
