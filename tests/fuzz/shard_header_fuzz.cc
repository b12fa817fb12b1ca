// Fuzzes the parser of a shard file's header. The first byte of an input chooses the optimizer's states, the others are
// a header without padding. As in manifest_fuzz.cc, each header is tried twice: as it is, and with the bytes after the
// frame's head framed anew and padded. In the second case the parser is given the file size that the header's pieces
// need.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/files/checkpoint/shard_header.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/integers.h"
#include "proto/checkpoint.pb.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr char kShardMagic[] = "SHALESHD";
constexpr uint32_t kShardVersion = 1;

// Returns the states of an optimizer: "0" none, "1" SGD's, "2" AdamW's, "3" those of AdamW in 8 bits.
std::vector<SavedState> ChosenStates(char choice) {
  switch (static_cast<uint8_t>(choice) % 4) {
    case 0: return {};
    case 1: return {{"momentum"}};
    case 2: return AdamWStates();
    default:
      return {{"m", DType::kUInt8},
              {"v", DType::kUInt8},
              {"m_scale", DType::kFloat32, 256},
              {"v_scale", DType::kFloat32, 256}};
  }
}

// Checks that the pieces follow each other without gaps from the end of the header to the end of the file.
void CheckPieces(const ShardHeader& header, int64_t head_bytes, int64_t file_bytes) {
  int64_t end = head_bytes;
  for (const ShardPiece& piece : header.pieces) {
    SHALE_CHECK(piece.parameter >= 0 && piece.range.begin >= 0 && piece.range.begin < piece.range.end);
    SHALE_CHECK(piece.offset_bytes == end && end % piece.element_bytes == 0) << end;
    SHALE_CHECK(piece.size_bytes() > 0 && piece.size_bytes() <= file_bytes - end) << end;
    end += piece.size_bytes();
  }
  SHALE_CHECK(end == file_bytes && header.size_bytes == file_bytes) << end;
}

void CheckHead(absl::string_view head, int64_t file_bytes, absl::Span<const SavedState> states) {
  const absl::StatusOr<ShardHeader> header = ParseShardHeader(head, file_bytes, states);
  if (!header.ok()) return CheckRefusal(header.status());
  const absl::StatusOr<int64_t> head_bytes = ShardHeadBytes(head.substr(0, kFrameHeadBytes));
  SHALE_CHECK(head_bytes.ok() && *head_bytes % kShardAlignment == 0) << head_bytes.status();
  CheckPieces(*header, *head_bytes, file_bytes);
  // Serialized again, the pieces are the same. The header may shrink, because protobuf accepts varints that are longer
  // than necessary.
  ShardHeader written = *header;
  const std::string text = SerializeShardHeader(written);
  const absl::StatusOr<ShardHeader> again = ParseShardHeader(text, written.size_bytes, states);
  SHALE_CHECK(again.ok()) << again.status();
  SHALE_CHECK(*again == written);
  const int64_t shrunk = file_bytes - written.size_bytes;
  SHALE_CHECK(shrunk >= 0 && shrunk % kShardAlignment == 0) << shrunk;
  for (ShardPiece& piece : written.pieces) piece.offset_bytes += shrunk;
  written.size_bytes += shrunk;
  SHALE_CHECK(written == *header);
}

// Returns the file offset at which the last piece of the message ends, computed from the format's description. Returns
// head_bytes if the message does not parse or the sum overflows.
int64_t FileBytes(const std::string& message, int64_t head_bytes, absl::Span<const SavedState> states) {
  proto::ShardHeader parsed;
  if (!parsed.ParseFromString(message)) return head_bytes;
  int64_t end = head_bytes;
  for (const proto::PieceRecord& piece : parsed.pieces()) {
    const int64_t state = int64_t{piece.part()} - 4;
    int64_t width = piece.part() == 2 || piece.part() == 3 ? 2 : 4;
    if (state >= 0 && state < std::ssize(states)) width = SizeOf(states[state].dtype);
    int64_t elements, bytes;
    if (__builtin_sub_overflow(piece.end(), piece.begin(), &elements) ||
        __builtin_mul_overflow(elements, width, &bytes) || __builtin_add_overflow(end, bytes, &end)) {
      return head_bytes;
    }
  }
  return end;
}

void CheckShardHeader(absl::string_view input) {
  const std::vector<SavedState> states = ChosenStates(input.empty() ? '2' : input[0]);
  const absl::string_view bytes = input.substr(input.empty() ? 0 : 1);
  CheckHead(bytes, static_cast<int64_t>(bytes.size()), states);
  const std::string message(bytes.substr(bytes.size() < kFrameHeadBytes ? 0 : kFrameHeadBytes));
  std::string head = Frame(kShardMagic, kShardVersion, message);
  head.resize(RoundUp(std::ssize(head), kShardAlignment), '\0');
  const int64_t file_bytes = FileBytes(message, static_cast<int64_t>(head.size()), states);
  CheckHead(head, file_bytes, states);
  if (ParseShardHeader(head, file_bytes, states).ok()) {
    for (const int64_t wrong : {file_bytes - 1, file_bytes + 2}) {
      SHALE_CHECK(!ParseShardHeader(head, wrong, states).ok());
    }
  }
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckShardHeader({reinterpret_cast<const char*>(data), size});
  return 0;
}
