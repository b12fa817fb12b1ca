#include "engine/checkpoint/framing.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/io/crc32c.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Little-endian, like every machine that this builds for.
struct Head {
  char magic[8];
  uint32_t version;
  uint32_t crc;  // CRC-32C of magic, version, length and message.
  uint64_t length;
};
static_assert(sizeof(Head) == kFrameHeadBytes);

template <class T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

uint32_t Checksum(const Head& head, absl::string_view message) {
  return Crc32c(message, Crc32c(BytesOf(head.length), Crc32c(BytesOf(head.version), Crc32c({head.magic, 8}))));
}

}  // namespace

std::string Frame(absl::string_view magic, uint32_t version, absl::string_view message) {
  SHALE_CHECK(magic.size() == 8);
  Head head;
  std::memcpy(head.magic, magic.data(), 8);
  head.version = version;
  head.length = message.size();
  head.crc = Checksum(head, message);
  return absl::StrCat(BytesOf(head), message);
}

absl::StatusOr<int64_t> FramedBytes(absl::string_view magic, absl::string_view bytes, int64_t max_bytes) {
  if (bytes.size() < sizeof(Head)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", bytes.size(), " bytes, too few for the ", sizeof(Head), " that it begins with"));
  }
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (absl::string_view(head.magic, 8) != magic) {
    return absl::InvalidArgumentError(absl::StrCat("it does not begin with \"", magic, "\""));
  }
  if (head.length > static_cast<uint64_t>(max_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it claims a message of ", head.length, " bytes; at most ", max_bytes, " are read"));
  }
  return static_cast<int64_t>(head.length);
}

absl::StatusOr<absl::string_view> Unframe(absl::string_view magic, uint32_t version, absl::string_view bytes,
                                          int64_t max_bytes) {
  SHALE_ASSIGN_OR_RETURN(const int64_t length, FramedBytes(magic, bytes, max_bytes));
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const absl::string_view message = bytes.substr(sizeof(head), length);
  if (static_cast<int64_t>(message.size()) < length) {
    return absl::InvalidArgumentError(
        absl::StrCat("it claims a message of ", length, " bytes, but only ", message.size(), " follow"));
  }
  if (const uint32_t crc = Checksum(head, message); crc != head.crc) {
    return absl::InvalidArgumentError(
        absl::StrFormat("it is damaged: its checksum is %08x, that of its bytes %08x", head.crc, crc));
  }
  if (head.version != version) {
    return absl::UnimplementedError(
        absl::StrCat("it is of format version ", head.version, "; this program reads version ", version));
  }
  return message;
}

}  // namespace shale
