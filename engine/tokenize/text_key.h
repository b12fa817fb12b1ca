// Names text in the cache of tokens by what decides the tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/data_files.h"
#include "engine/io/file.h"
#include "engine/io/file_content.h"
#include "engine/tokenize/prepared_text.h"

namespace shale {

// Two checksums of the same bytes, by different polynomials.
class TextChecksum {
 public:
  void Add(absl::string_view bytes);
  void AddNumber(int64_t number);
  // Adds the bytes of a file. Returns the checksum of these alone (Crc64).
  absl::StatusOr<uint64_t> AddFile(const InputFile& file);

  uint64_t crc64() const { return crc64_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  uint64_t crc64_ = 0;
  uint32_t crc32c_ = 0;
};

// A file as it was when its checksum was taken.
struct SeenFile {
  std::string path;
  FileContent content;
};

// Returns a checksum of the version of the cache, of the fields of `text`, of the files of the tokenizer and of the
// given files, as hexadecimal digits. Appends the latter to `*seen`.
absl::StatusOr<std::string> TextKey(const TextData& text, int version, const std::vector<DataFile>& files,
                                    std::vector<SeenFile>* seen);

}  // namespace shale
