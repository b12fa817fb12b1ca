#include "engine/files/io/input_stream.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/io/checksums.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kPackedBytes = int64_t{1} << 18;  // Read at once from a compressed file.

// What compressed files begin with. No UTF-8 text begins so.
constexpr absl::string_view kGzipMagic = "\x1F\x8B", kZstdMagic = "\x28\xB5\x2F\xFD";

enum class Compression { kNone, kGzip, kZstd };

// The content decides. A file that is named as a compressed one and is none is damaged.
absl::StatusOr<Compression> CompressionOf(const InputFile& file) {
  char bytes[4];
  const int64_t size = std::min<int64_t>(file.size(), sizeof(bytes));
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, bytes, size));
  const absl::string_view head(bytes, size);
  if (absl::StartsWith(head, kGzipMagic)) return Compression::kGzip;
  if (absl::StartsWith(head, kZstdMagic)) return Compression::kZstd;
  if (absl::EndsWithIgnoreCase(file.path(), ".gz")) return Compression::kGzip;
  return absl::EndsWithIgnoreCase(file.path(), ".zst") ? Compression::kZstd : Compression::kNone;
}

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
  // A file that was only touched counts as unchanged. REQUIRES: all of it was read.
  absl::Status CheckUnchanged() const { return FileContent(file_.identity(), 0, file_.size(), crc64_).Check(file_); }

 protected:
  // Reads bytes of the file itself.
  absl::StatusOr<int64_t> ReadFile(char* out, int64_t size) {
    const int64_t bytes = std::min(size, file_.size() - offset_);
    SHALE_RETURN_IF_ERROR(file_.ReadAt(offset_, out, bytes));
    crc64_ = Crc64(absl::string_view(out, bytes), crc64_);
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
  uint64_t crc64_ = 0;  // Of the bytes before offset_.
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
      if (between_) {
        // Zeros may follow a member, up to the end of a block of a tape; gzip and Python ignore them.
        while (stream.avail_in > 0 && *stream.next_in == 0) {
          ++stream.next_in;
          --stream.avail_in;
        }
        if (stream.avail_in == 0) continue;
        if (*stream.next_in != kGzipMagic[0]) {
          return Damaged(
              absl::StrCat("bytes that are no gzip data follow its data, at byte ", bytes_read() - stream.avail_in));
        }
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
    // By default a stream refuses windows over 128 MiB, which zstd --long makes. Their memory is used only as far as
    // the data reach.
    const int largest = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound;
    SHALE_CHECK(ZSTD_isError(ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, largest)) == 0);
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
      if (ZSTD_isError(code) != 0) return Failed(code);
      between_ = code == 0;
      // A full output may hide bytes that are unpacked and wait inside of the stream.
      has_more_ = !between_ && unpacked.pos == unpacked.size;
    }
    return static_cast<int64_t>(unpacked.pos);
  }

 private:
  absl::Status Failed(size_t code) const {
    switch (ZSTD_getErrorCode(code)) {
      case ZSTD_error_memory_allocation:
        return absl::ResourceExhaustedError(
            absl::StrCat(path(),
                         " needs more memory than there is to be unpacked: up to 2 GiB, the window of zstd "
                         "--long; pack it again without --long"));
      case ZSTD_error_dictionary_wrong:
        return absl::InvalidArgumentError(
            absl::StrCat(path(), " was packed with a dictionary; unpack it with zstd -d -D DICTIONARY"));
      default: return Damaged(ZSTD_getErrorName(code));
    }
  }

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
  SHALE_ASSIGN_OR_RETURN(const Compression compression, CompressionOf(file));
  switch (compression) {
    case Compression::kNone: break;
    case Compression::kGzip: return InputStream(std::make_unique<Gzip>(std::move(file)));
    case Compression::kZstd: return InputStream(std::make_unique<Zstd>(std::move(file)));
  }
  return InputStream(std::make_unique<Source>(std::move(file)));
}

absl::StatusOr<bool> IsPacked(const InputFile& file) {
  SHALE_ASSIGN_OR_RETURN(const Compression compression, CompressionOf(file));
  return compression != Compression::kNone;
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
  for (const absl::string_view ending : {".gz", ".zst"}) {
    if (absl::EndsWithIgnoreCase(path, ending)) return path.substr(0, path.size() - ending.size());
  }
  return path;
}

}  // namespace shale
