#include "engine/io/input_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kPackedBytes = int64_t{1} << 18;  // Read at once from a compressed file.

}  // namespace

// A file that is read as it is. Those that unpack derive from it.
class InputStream::Source {
 public:
  explicit Source(InputFile file) : file_(std::move(file)) { file_.ReadsInOrder(); }
  virtual ~Source() = default;

  const std::string& path() const { return file_.path(); }
  virtual bool at_end() const { return offset_ == file_.size(); }
  // Writes up to `size` bytes and returns how many; 0 at the end alone.
  virtual absl::StatusOr<int64_t> Read(char* out, int64_t size) { return ReadFile(out, size); }
  int64_t bytes_read() const { return offset_; }
  absl::Status CheckUnchanged() const { return file_.CheckUnchangedSince(file_.identity()); }

 protected:
  // Reads bytes of the file itself.
  absl::StatusOr<int64_t> ReadFile(char* out, int64_t size) {
    const int64_t bytes = std::min(size, file_.size() - offset_);
    SHALE_RETURN_IF_ERROR(file_.ReadAt(offset_, out, bytes));
    offset_ += bytes;
    return bytes;
  }
  bool file_ends() const { return offset_ == file_.size(); }
  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(path(), " is damaged or was cut short: ", what));
  }

 private:
  InputFile file_;
  int64_t offset_ = 0;
};

namespace {

struct GzipState {
  z_stream stream = {};
  GzipState() { SHALE_CHECK(inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK); }
  ~GzipState() { inflateEnd(&stream); }
};

}  // namespace

class InputStream::Gzip : public Source {
 public:
  explicit Gzip(InputFile file) : Source(std::move(file)), packed_(kPackedBytes) {}

  bool at_end() const override { return between_ && state_.stream.avail_in == 0 && file_ends(); }
  absl::StatusOr<int64_t> Read(char* out, int64_t size) override {
    z_stream& stream = state_.stream;
    stream.next_out = reinterpret_cast<Bytef*>(out);
    stream.avail_out = static_cast<uInt>(size);
    while (stream.avail_out > 0 && !at_end()) {
      if (stream.avail_in == 0) {
        SHALE_ASSIGN_OR_RETURN(const int64_t bytes, ReadFile(packed_.data(), std::ssize(packed_)));
        if (bytes == 0) return Damaged("it ends inside of its compressed data");
        stream.next_in = reinterpret_cast<Bytef*>(packed_.data());
        stream.avail_in = static_cast<uInt>(bytes);
      }
      between_ = false;
      const int code = inflate(&stream, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between_ = true;  // Another member may follow.
        inflateReset(&stream);
      } else if (code != Z_OK) {
        return Damaged(stream.msg != nullptr ? stream.msg : "it has no gzip data");
      }
    }
    return size - stream.avail_out;
  }

 private:
  GzipState state_;
  std::vector<char> packed_;
  bool between_ = false;  // All bytes so far are whole members.
};

class InputStream::Zstd : public Source {
 public:
  explicit Zstd(InputFile file) : Source(std::move(file)), stream_(ZSTD_createDStream()), packed_(kPackedBytes) {
    SHALE_CHECK(stream_ != nullptr);
  }
  ~Zstd() override { ZSTD_freeDStream(stream_); }

  bool at_end() const override { return between_ && in_.pos == in_.size && file_ends(); }
  absl::StatusOr<int64_t> Read(char* out, int64_t size) override {
    ZSTD_outBuffer unpacked = {out, static_cast<size_t>(size), 0};
    while (unpacked.pos < unpacked.size && !at_end()) {
      const bool waits = in_.pos == in_.size && !has_more_;
      if (waits) {
        SHALE_ASSIGN_OR_RETURN(const int64_t bytes, ReadFile(packed_.data(), std::ssize(packed_)));
        if (bytes == 0) return Damaged("it ends inside of its compressed data");
        in_ = {packed_.data(), static_cast<size_t>(bytes), 0};
      }
      const size_t code = ZSTD_decompressStream(stream_, &unpacked, &in_);
      if (ZSTD_isError(code) != 0) return Damaged(ZSTD_getErrorName(code));
      between_ = code == 0;
      // A full output may hide bytes that are unpacked and wait inside of the stream.
      has_more_ = !between_ && unpacked.pos == unpacked.size;
    }
    return static_cast<int64_t>(unpacked.pos);
  }

 private:
  ZSTD_DStream* stream_;
  std::vector<char> packed_;
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  bool between_ = false;
  bool has_more_ = false;
};

InputStream::InputStream(std::unique_ptr<Source> source) : source_(std::move(source)) {}
InputStream::InputStream(InputStream&& other) noexcept = default;
InputStream& InputStream::operator=(InputStream&& other) noexcept = default;
InputStream::~InputStream() = default;

absl::StatusOr<InputStream> InputStream::Open(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  if (absl::EndsWith(path, ".gz")) return InputStream(std::make_unique<Gzip>(std::move(file)));
  if (absl::EndsWith(path, ".zst")) return InputStream(std::make_unique<Zstd>(std::move(file)));
  return InputStream(std::make_unique<Source>(std::move(file)));
}

const std::string& InputStream::path() const { return source_->path(); }
bool InputStream::at_end() const { return source_->at_end(); }
int64_t InputStream::bytes_read() const { return source_->bytes_read(); }

absl::Status InputStream::Append(int64_t size, std::string* out) {
  const size_t before = out->size();
  out->resize(before + size);
  int64_t bytes = 0;
  while (bytes < size && !source_->at_end()) {
    SHALE_ASSIGN_OR_RETURN(const int64_t more, source_->Read(out->data() + before + bytes, size - bytes));
    bytes += more;
  }
  out->resize(before + bytes);
  return source_->at_end() ? source_->CheckUnchanged() : absl::OkStatus();
}

absl::string_view WithoutPacking(absl::string_view path) {
  if (!absl::ConsumeSuffix(&path, ".gz")) absl::ConsumeSuffix(&path, ".zst");
  return path;
}

}  // namespace shale
