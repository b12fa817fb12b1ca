#include "engine/c/calls.h"

#include <algorithm>

namespace shale::c {
namespace {

// Returns the first at most `most` bytes of a UTF-8 text, cut before a character that does not fit.
absl::string_view Cut(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

}  // namespace

shale_code Report(const absl::Status& status, shale_error* error) {
  const auto code = static_cast<shale_code>(status.code());
  // A struct that is smaller than this version's has no place for a message.
  if (error == nullptr || error->size < sizeof(shale_error)) return code;
  const absl::string_view message = Cut(status.message(), sizeof(error->message) - 1);
  std::copy(message.begin(), message.end(), error->message);
  error->message[message.size()] = '\0';
  error->code = code;
  return code;
}

absl::Status StatusOf(shale_code code, const shale_error& error, absl::string_view callback) {
  if (code == SHALE_OK) return absl::OkStatus();
  const absl::string_view message(error.message, strnlen(error.message, sizeof(error.message)));
  const bool known = code > SHALE_OK && code <= SHALE_DATA_LOSS;
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      absl::StrCat(callback, ": ", message.empty() ? absl::StrCat("returned ", code) : message));
}

absl::Status CheckStruct(const void* given, size_t size, size_t least, size_t known, absl::string_view name) {
  if (size < least || size > kMostStructBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "->size is ", size, "; begin with SHALE_INIT, which sets it to ", known));
  }
  const char* const bytes = static_cast<const char*>(given);
  if (std::any_of(bytes + std::min(size, known), bytes + size, [](char byte) { return byte != 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " sets a member that version ", SHALE_API_VERSION, " of this library does not have"));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(absl::string_view name, absl::string_view member, int64_t value, int64_t least, int64_t most) {
  if (least <= value && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, name.empty() ? "" : "->", member, " is ", value, "; allowed: ", least, " to ", most));
}

absl::Status CheckIndex(int64_t index, int64_t count, absl::string_view name) {
  if (index >= 0 && index < count) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("found ", name, " ", index, "; there are ", count));
}

absl::Status CheckSeconds(double seconds) {
  if (seconds >= 0) return absl::OkStatus();  // False for NaN.
  return absl::InvalidArgumentError(absl::StrCat("seconds is ", seconds, "; at least 0"));
}

absl::Status GiveText(absl::string_view text, char* buffer, size_t capacity, size_t* needed) {
  if (buffer == nullptr && needed == nullptr) return absl::InvalidArgumentError("buffer and needed are both NULL");
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer == nullptr) return absl::OkStatus();
  if (capacity <= text.size()) {
    return absl::OutOfRangeError(absl::StrCat("the buffer has ", capacity, " bytes; needed are ", text.size() + 1));
  }
  std::copy(text.begin(), text.end(), buffer);
  buffer[text.size()] = '\0';
  return absl::OkStatus();
}

}  // namespace shale::c

int32_t shale_api_version(void) { return SHALE_API_VERSION; }
