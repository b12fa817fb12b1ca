#include "engine/files/checkpoint/framing.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/files/io/checksums.h"
#include "google/protobuf/wire_format.h"
#include "google/protobuf/wire_format_lite.h"
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

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;

absl::Status Malformed() { return absl::InvalidArgumentError("is malformed"); }

// Removes a varint of at most ten bytes from the front of `bytes` and sets `*value`. Returns false if there is none or
// its value is above `max`.
bool TakeVarint(absl::string_view& bytes, uint64_t max, uint64_t* value) {
  *value = 0;
  for (size_t i = 0; i < std::min<size_t>(bytes.size(), 10); ++i) {
    const uint64_t byte = static_cast<unsigned char>(bytes[i]);
    *value |= (byte & 0x7F) << (7 * i);
    if (byte >= 0x80) continue;
    bytes.remove_prefix(i + 1);
    return *value <= max;
  }
  return false;
}

// Removes a field's value of this wire type from the front of `bytes`. Sets `*value` to its bytes without the length
// prefix, or leaves `*value` alone for a varint. Returns false if there is no such value.
bool TakeValue(WireFormatLite::WireType type, absl::string_view& bytes, absl::string_view* value) {
  uint64_t size = 0;
  switch (type) {
    case WireFormatLite::WIRETYPE_VARINT: return TakeVarint(bytes, std::numeric_limits<uint64_t>::max(), &size);
    case WireFormatLite::WIRETYPE_FIXED64: size = 8; break;
    case WireFormatLite::WIRETYPE_FIXED32: size = 4; break;
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      if (!TakeVarint(bytes, std::numeric_limits<int32_t>::max(), &size)) return false;
      break;
    default: return false;  // Groups, which no message here uses.
  }
  if (size > bytes.size()) return false;
  *value = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return true;
}

// Returns the number of elements in a packed field. Counts varints by their last bytes, the only ones below 0x80.
int64_t CountPacked(WireFormatLite::WireType element, absl::string_view bytes) {
  if (element == WireFormatLite::WIRETYPE_FIXED32) return static_cast<int64_t>(bytes.size()) / 4;
  if (element == WireFormatLite::WIRETYPE_FIXED64) return static_cast<int64_t>(bytes.size()) / 8;
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

struct Seen {
  int64_t count = 0;
  int64_t max = 1;
  absl::string_view what;
};

std::vector<Seen> Begin(const Descriptor& type, absl::Span<const WireLimit> limits) {
  std::vector<Seen> fields(type.field_count());
  for (int i = 0; i < type.field_count(); ++i) {
    if (!type.field(i)->is_repeated()) continue;
    fields[i].max = std::numeric_limits<int64_t>::max();
    for (const WireLimit& limit : limits) {
      if (limit.field == absl::string_view(type.field(i)->name())) fields[i] = {0, limit.max, limit.what};
    }
  }
  return fields;
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

absl::Status CheckWire(const Descriptor& type, absl::string_view message, absl::Span<const WireLimit> limits) {
  std::vector<Seen> fields = Begin(type, limits);
  while (!message.empty()) {
    uint64_t tag = 0;
    if (!TakeVarint(message, std::numeric_limits<uint32_t>::max(), &tag)) return Malformed();
    const FieldDescriptor* field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
    if (tag >> 3 == 0) return Malformed();
    if (field == nullptr) {
      return absl::InvalidArgumentError("has fields that this program does not know: it was written by a newer one");
    }
    const auto wire = static_cast<WireFormatLite::WireType>(tag & 7);
    const auto own = WireFormat::WireTypeForFieldType(field->type());
    const bool packed = field->is_packable() && wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (wire != own && !packed) return Malformed();
    absl::string_view value;
    if (!TakeValue(wire, message, &value)) return Malformed();
    Seen& seen = fields[field->index()];
    seen.count += packed ? CountPacked(own, value) : 1;
    if (seen.count > seen.max) {
      if (!field->is_repeated()) return Malformed();
      return absl::InvalidArgumentError(absl::StrCat("has more than ", seen.max, " ", seen.what));
    }
    if (field->message_type() != nullptr) {
      SHALE_RETURN_IF_ERROR(CheckWire(*field->message_type(), value, limits));
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
