#include "engine/text/utf8_stream.h"

#include <utility>

#include "engine/text/utf8.h"

namespace shale {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

}  // namespace

std::string Utf8Stream::Push(uint8_t byte) {
  pending_.push_back(static_cast<char>(byte));
  Utf8Validator validator;
  if (validator.Feed(pending_)) return validator.Finish() ? std::exchange(pending_, "") : "";
  const bool alone = pending_.size() == 1;
  pending_.clear();
  // The byte that ended an incomplete character may itself begin one.
  return alone ? kReplacement : kReplacement + Push(byte);
}

std::string Utf8Stream::Finish() { return std::exchange(pending_, "").empty() ? "" : kReplacement; }

}  // namespace shale
