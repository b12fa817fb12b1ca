#include "tests/fuzz/properties.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"

namespace shale {

void CheckRefusal(const absl::Status& status) {
  constexpr size_t kLongest = size_t{1} << 14;
  SHALE_CHECK(absl::IsInvalidArgument(status) || absl::IsDataLoss(status) || absl::IsUnimplemented(status)) << status;
  const absl::string_view message = status.message();
  SHALE_CHECK(!message.empty());
  SHALE_CHECK(message.size() <= kLongest) << message.size() << " bytes: " << message.substr(0, 1000);
  SHALE_CHECK(IsUtf8(message)) << message;
  for (const char c : message) {
    SHALE_CHECK((static_cast<uint8_t>(c) >= 0x20 && c != 0x7F) || c == '\n') << message;
  }
}

}  // namespace shale
