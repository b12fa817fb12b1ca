#include "engine/checkpoint/wire_walk.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/wire_format.h"
#include "google/protobuf/wire_format_lite.h"
#include "kernels/check.h"

namespace shale {
namespace {

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
