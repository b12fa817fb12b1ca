// InputStream: reads a file from its beginning to its end, unpacked if it is compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/io/file.h"

namespace shale {

// Unpacks gzip and zstd, which their first bytes or their names tell; other files are read as they are. Used by one
// thread. Memory does not grow with the file, but for the window of zstd --long, up to 2 GiB.
class InputStream {
 public:
  // Returns the errors of InputFile::Open.
  static absl::StatusOr<InputStream> Open(const std::string& path);
  InputStream(InputStream&& other) noexcept;
  InputStream& operator=(InputStream&& other) noexcept;
  ~InputStream();

  const std::string& path() const;

  // Appends up to `size` bytes to `*out`. Appends fewer only at the end of the file. Returns DataLoss if the file was
  // cut short, is damaged or has other bytes than when it was opened.
  absl::Status Append(int64_t size, std::string* out);
  // Returns whether all bytes were read. Becomes true at the latest with an Append that appends too few.
  bool at_end() const;
  // Returns how many bytes of the file were read, compressed if it is.
  int64_t bytes_read() const;

 private:
  class Source;
  class Gzip;
  class Zstd;

  explicit InputStream(std::unique_ptr<Source> source);

  std::unique_ptr<Source> source_;
};

// Returns whether an InputStream unpacks the file.
absl::StatusOr<bool> IsPacked(const InputFile& file);

// Returns a path without the ending of a compressed file: "a.jsonl" for "a.jsonl.gz".
absl::string_view WithoutPacking(absl::string_view path);

}  // namespace shale
