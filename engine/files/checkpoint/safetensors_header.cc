#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/checkpoint/safetensors.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

constexpr absl::string_view kMetadataName = "__metadata__";

// Builds the header from the JSON parser's events. The first event that the format does not allow ends the parse, so
// that a hostile file with deep nesting or many members costs nothing.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(SafetensorsHeader* header) : header_(*header) {}

  const std::string& error() const { return error_; }

  // The library of safetensors takes null for metadata as none.
  bool null() override { return (level_ == Level::kTop && member_ == kMetadataName) || Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a number that is not an integer"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::kShape && level_ != Level::kOffsets) return Unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat("the number ", value, " is too large"));
    }
    if (level_ == Level::kOffsets) {
      offsets_.push_back(static_cast<int64_t>(value));
      return offsets_.size() <= 2 || Fail("data_offsets must be [begin, end]");
    }
    tensor().shape.push_back(static_cast<int64_t>(value));
    return tensor().shape.size() <= kMaxSafetensorsDimensions ||
           Fail(absl::StrCat("more than ", kMaxSafetensorsDimensions, " dimensions"));
  }

  bool string(string_t& value) override {
    if (level_ == Level::kMetadata) {
      header_.metadata[member_] = std::move(value);
      return header_.metadata.size() <= kMaxSafetensorsMetadata ||
             Fail(absl::StrCat("__metadata__ has more than ", kMaxSafetensorsMetadata, " entries"));
    }
    if (level_ != Level::kTensor || member_ != "dtype") return Unexpected("a string");
    const std::optional<SafetensorsDType> dtype = FindSafetensorsDType(value);
    if (!dtype.has_value()) return Fail(absl::StrCat("unknown dtype ", ShortJsonQuote(value)));
    tensor().dtype = *dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    if (level_ == Level::kStart) {
      level_ = Level::kTop;
    } else if (level_ == Level::kTop && member_ == kMetadataName) {
      level_ = Level::kMetadata;
    } else if (level_ == Level::kTop) {
      level_ = Level::kTensor;
      members_.clear();
      if (header_.tensors.size() == kMaxSafetensorsTensors) {
        level_ = Level::kTop;
        return Fail(absl::StrCat("there are more than ", kMaxSafetensorsTensors, " tensors"));
      }
      header_.tensors.emplace_back().name = member_;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    member_ = std::move(name);
    const absl::string_view member = member_;
    if (level_ == Level::kTop) {
      return names_.insert(member_).second || Fail(absl::StrCat(ShortJsonQuote(member), " occurs twice"));
    }
    if (level_ == Level::kMetadata) {
      return !header_.metadata.contains(member_) ||
             Fail(absl::StrCat(ShortJsonQuote(member), " occurs twice in __metadata__"));
    }
    if (member != "dtype" && member != "shape" && member != "data_offsets") {
      return Fail(
          absl::StrCat("unknown member ", ShortJsonQuote(member), "; a tensor has dtype, shape and data_offsets"));
    }
    return members_.insert(member_).second || Fail(absl::StrCat(member, " occurs twice"));
  }

  bool end_object() override {
    if (level_ == Level::kTensor && members_.size() != 3) return Fail("dtype, shape or data_offsets is missing");
    level_ = Level::kTop;  // This also runs at the end of the top object, after which no event follows.
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ != Level::kTensor || member_ == "dtype") return Unexpected("a list");
    level_ = member_ == "shape" ? Level::kShape : Level::kOffsets;
    offsets_.clear();
    return true;
  }

  bool end_array() override {
    if (level_ == Level::kOffsets) {
      if (offsets_.size() != 2) return Fail("data_offsets must be [begin, end]");
      tensor().begin = offsets_[0];
      tensor().end = offsets_[1];
    }
    level_ = Level::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error_ = absl::StrCat("the header is not JSON at its byte ", position);
    return false;
  }

 private:
  enum class Level { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  SafetensorsTensor& tensor() { return header_.tensors.back(); }

  bool Fail(absl::string_view what) {
    const bool in_tensor = level_ == Level::kTensor || level_ == Level::kShape || level_ == Level::kOffsets;
    error_ = in_tensor ? absl::StrCat("tensor ", ShortJsonQuote(tensor().name), ": ", what) : std::string(what);
    return false;
  }

  bool Unexpected(absl::string_view found) {
    switch (level_) {
      case Level::kStart: return Fail(absl::StrCat("the header is ", found, ", not an object"));
      case Level::kTop: return Fail(absl::StrCat(ShortJsonQuote(member_), " is ", found, ", not an object"));
      case Level::kMetadata:
        return Fail(
            absl::StrCat("__metadata__ of ", ShortJsonQuote(member_), " is ", found, "; it maps strings to strings"));
      case Level::kTensor: return Fail(absl::StrCat(member_, " is ", found));
      case Level::kShape: return Fail(absl::StrCat("shape holds ", found));
      case Level::kOffsets: return Fail(absl::StrCat("data_offsets holds ", found));
    }
    return false;
  }

  SafetensorsHeader& header_;
  Level level_ = Level::kStart;
  std::string member_;                        // The last name read.
  absl::flat_hash_set<std::string> names_;    // The names at the top level.
  absl::flat_hash_set<std::string> members_;  // The members of the current tensor.
  std::vector<int64_t> offsets_;
  std::string error_;
};

// Checks that the tensors fill the data without gaps, from the first byte to the last.
absl::Status CheckPlaces(const std::vector<SafetensorsTensor>& tensors, int64_t data_bytes) {
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto fail = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", ShortJsonQuote(tensor.name), ": ", what...));
    };
    if (tensor.end < tensor.begin) return fail("ends at byte ", tensor.end, ", before it begins at ", tensor.begin);
    if (tensor.begin != end) {
      return fail("begins at byte ", tensor.begin, ", but the tensor before it ends at ", end);
    }
    const absl::StatusOr<int64_t> bytes = SafetensorsBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) return fail(bytes.status().message());
    if (*bytes != tensor.size_bytes()) {
      return fail("has ", tensor.size_bytes(), " bytes, but ", ToString(tensor.dtype), " [",
                  absl::StrJoin(tensor.shape, ", "), "] takes ", *bytes);
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at byte ", end, " of the data, but there are ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SafetensorsTensor::elements() const {
  const int64_t bits = BitsPerElement(dtype);
  return size_bytes() / bits * 8 + size_bytes() % bits * 8 / bits;  // 8 * size_bytes() might overflow.
}

absl::StatusOr<int64_t> SafetensorsBytes(SafetensorsDType dtype, absl::Span<const int64_t> shape) {
  int64_t bits = 1;
  bool overflow = false;
  for (const int64_t size : shape) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("dimension ", size, " is negative"));
    overflow |= __builtin_mul_overflow(bits, size, &bits);
  }
  overflow |= __builtin_mul_overflow(bits, BitsPerElement(dtype), &bits);
  if (overflow) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(dtype), " [", absl::StrJoin(shape, ", "), "] has more bytes than can be counted"));
  }
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(dtype), " [", absl::StrJoin(shape, ", "), "] takes ", bits,
                                                   " bits, which is not a whole number of bytes"));
  }
  return bits / 8;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes) {
  // The parser accepts a leading byte order mark; the library of safetensors does not. That takes white space at both
  // ends, although the format has only spaces behind the object.
  constexpr absl::string_view kSpace = " \t\r\n";
  const size_t begin = json.find_first_not_of(kSpace), end = json.find_last_not_of(kSpace);
  const absl::string_view object = begin == absl::string_view::npos ? "" : json.substr(begin, end - begin + 1);
  if (object.size() < 2 || object.front() != '{' || object.back() != '}') {
    return absl::InvalidArgumentError("the header is not a JSON object between { and }, with white space around it");
  }
  SafetensorsHeader header;
  HeaderHandler handler(&header);
  if (!nlohmann::json::sax_parse(object.begin(), object.end(), &handler)) {
    return absl::InvalidArgumentError(handler.error());
  }
  // The parser takes a zero byte for the end of the text, and drops what follows.
  if (const size_t zero = object.find('\0'); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the header is not JSON at its byte ", begin + zero + 1));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  SHALE_RETURN_IF_ERROR(CheckPlaces(header.tensors, data_bytes));
  return header;
}

std::string SafetensorsHeaderText(const SafetensorsHeader& header) {
  std::string text = "{";
  if (!header.metadata.empty()) {
    absl::StrAppend(&text, JsonQuote(kMetadataName), ":{",
                    absl::StrJoin(header.metadata, ",",
                                  [](std::string* out, const auto& entry) {
                                    absl::StrAppend(out, JsonQuote(entry.first), ":", JsonQuote(entry.second));
                                  }),
                    "}");
  }
  for (const SafetensorsTensor& tensor : header.tensors) {
    absl::StrAppend(&text, text.size() > 1 ? "," : "", JsonQuote(tensor.name), ":{\"dtype\":\"", ToString(tensor.dtype),
                    "\",\"shape\":[", absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", tensor.begin, ",",
                    tensor.end, "]}");
  }
  text += "}";
  text.resize(RoundUp(std::ssize(text), 8), ' ');
  return text;
}

}  // namespace shale
