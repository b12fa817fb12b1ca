#include "engine/files/checkpoint/shard_header.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/io/checksums.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "proto/checkpoint.pb.h"

namespace shale {
namespace {

constexpr char kShardMagic[] = "SHALESHD";
constexpr uint32_t kShardVersion = 1;
constexpr WireLimit kHeaderLimits[] = {{"pieces", kMaxShardPieces, "pieces"}};

int64_t PaddedBytes(int64_t message_bytes) { return RoundUp(kFrameHeadBytes + message_bytes, kShardAlignment); }

template <class... Args>
absl::Status RefuseHeader(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat("its header ", what...));
}

}  // namespace

bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status);
}

absl::StatusOr<InputFile> OpenSavedFile(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return FileError(errno, "examine", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  return InputFile::Open(path);
}

absl::Status CheckSavedSize(const InputFile& file, const SavedFile& saved) {
  if (file.size() == saved.size_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), " has ", file.size(), " bytes; the manifest says ", saved.size_bytes));
}

absl::StatusOr<absl::string_view> ReadSavedChunk(const InputFile& file, const SavedFile& saved, int64_t chunk,
                                                 absl::Span<char> out) {
  const int64_t begin = chunk * kCheckpointChunkBytes;
  const int64_t size = std::min(kCheckpointChunkBytes, saved.size_bytes - begin);
  SHALE_CHECK(chunk >= 0 && size > 0 && std::ssize(out) >= size);
  SHALE_RETURN_IF_ERROR(file.ReadAt(begin, out.data(), size));
  const absl::string_view bytes(out.data(), size);
  if (const uint32_t crc = Crc32c(bytes); crc != saved.chunk_crcs[chunk]) {
    return absl::DataLossError(
        absl::StrFormat("%s is damaged between bytes %d and %d: their checksum is %08x, the manifest says %08x",
                        file.path(), begin, begin + size, crc, saved.chunk_crcs[chunk]));
  }
  return bytes;
}

std::string SerializeShardHeader(ShardHeader& header) {
  proto::ShardHeader message;
  message.set_rank(header.rank);
  for (const ShardPiece& piece : header.pieces) {
    proto::PieceRecord& record = *message.add_pieces();
    record.set_parameter(piece.parameter);
    record.set_part(static_cast<int32_t>(piece.part));
    record.set_begin(piece.range.begin);
    record.set_end(piece.range.end);
  }
  std::string head = Frame(kShardMagic, kShardVersion, message.SerializeAsString());
  head.resize(PaddedBytes(static_cast<int64_t>(head.size()) - kFrameHeadBytes), '\0');
  header.size_bytes = static_cast<int64_t>(head.size());
  for (ShardPiece& piece : header.pieces) {
    SHALE_CHECK(header.size_bytes % piece.element_bytes == 0)
        << "a part with wide elements follows one with narrow elements";
    piece.offset_bytes = header.size_bytes;
    header.size_bytes += piece.size_bytes();
  }
  return head;
}

absl::StatusOr<int64_t> ShardHeadBytes(absl::string_view bytes) {
  SHALE_ASSIGN_OR_RETURN(const int64_t message, FramedBytes(kShardMagic, bytes, kMaxShardHeaderBytes));
  return PaddedBytes(message);
}

absl::StatusOr<ShardHeader> ParseShardHeader(absl::string_view head, int64_t file_bytes,
                                             absl::Span<const SavedState> states) {
  SHALE_ASSIGN_OR_RETURN(const absl::string_view message,
                         Unframe(kShardMagic, kShardVersion, head, kMaxShardHeaderBytes));
  const int64_t padded = PaddedBytes(static_cast<int64_t>(message.size()));
  if (static_cast<int64_t>(head.size()) < padded) return RefuseHeader("is cut short");
  const absl::string_view padding =
      head.substr(kFrameHeadBytes + message.size(), padded - kFrameHeadBytes - message.size());
  if (!std::all_of(padding.begin(), padding.end(), [](char c) { return c == '\0'; })) {
    return RefuseHeader("is padded with bytes other than zero");
  }
  proto::ShardHeader parsed;
  if (const absl::Status status = CheckWire(*parsed.descriptor(), message, kHeaderLimits); !status.ok()) {
    return RefuseHeader(status.message());
  }
  if (!parsed.ParseFromArray(message.data(), static_cast<int>(message.size()))) return RefuseHeader("is malformed");
  ShardHeader header;
  header.rank = parsed.rank();
  int64_t end = padded;
  for (const proto::PieceRecord& record : parsed.pieces()) {
    const int32_t last = static_cast<int32_t>(SavedPart::kFirstState) + static_cast<int32_t>(states.size()) - 1;
    const bool nf4 = record.part() >= static_cast<int32_t>(SavedPart::kNf4Codes) &&
                     record.part() <= static_cast<int32_t>(SavedPart::kNf4Means);
    if (!nf4 && (record.part() < static_cast<int32_t>(SavedPart::kValue) || record.part() > last)) {
      return RefuseHeader("has a piece of part ", record.part(), ", which is unknown");
    }
    const auto part = static_cast<SavedPart>(record.part());
    const int64_t element_bytes = BytesPerElement(part, states);
    if (record.parameter() < 0 || record.begin() < 0 || record.begin() >= record.end()) {
      return RefuseHeader("has a piece with elements ", record.begin(), " to ", record.end(), " of parameter ",
                          record.parameter());
    }
    const ShardPiece piece{record.parameter(), part, {record.begin(), record.end()}, element_bytes, end};
    if (end % element_bytes != 0 || record.end() - record.begin() > (file_bytes - end) / element_bytes) {
      return RefuseHeader("has a piece of ", record.end() - record.begin(), " elements at byte ", end,
                          ", which is misaligned or does not fit a file of ", file_bytes, " bytes");
    }
    end += piece.size_bytes();
    header.pieces.push_back(piece);
  }
  if (end != file_bytes) return RefuseHeader("accounts for ", end, " bytes of a file of ", file_bytes);
  header.size_bytes = end;
  return header;
}

}  // namespace shale
