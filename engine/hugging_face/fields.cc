#include "engine/hugging_face/fields.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shale {
namespace {

constexpr size_t kMaxErrors = 20;
constexpr size_t kLongestKey = 64;  // Keys with a meaning are shorter. A file may contain longer ones.

// Returns a key in a form for messages: bare if it is a word, else quoted.
std::string ShownKey(absl::string_view key) {
  const bool word = key.size() <= kLongestKey &&
                    std::all_of(key.begin(), key.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
  return word ? std::string(key) : ShownJson(Json(std::string(key)));
}

}  // namespace

void HfErrors::Add(absl::string_view key, absl::string_view found, absl::string_view allowed) {
  if (++count_ > kMaxErrors) return;
  errors_.push_back(absl::StrCat(path_, ": ", key, ": found ", found, "; allowed: ", allowed));
}

absl::Status HfErrors::ToStatus() const {
  if (errors_.empty()) return absl::OkStatus();
  std::string message = absl::StrJoin(errors_, "\n");
  if (count_ > kMaxErrors) absl::StrAppend(&message, "\nand ", count_ - kMaxErrors, " more errors");
  return absl::InvalidArgumentError(message);
}

const Json* HfFields::Find(absl::string_view key) const {
  const auto found = object_.find(std::string(key));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void HfFields::Refuse(absl::string_view key, absl::string_view allowed) const {
  const Json* value = Find(key);
  errors_.Add(absl::StrCat(prefix_, ShownKey(key)), value == nullptr ? "nothing" : ShownJson(*value), allowed);
}

int64_t HfFields::Int(absl::string_view key, int64_t min, int64_t max) const {
  const Json* value = Find(key);
  // get<int64_t>() would wrap an unsigned number above the range of int64_t.
  if (value != nullptr && value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(max))) {
    const int64_t number = value->get<int64_t>();
    if (number >= min && number <= max) return number;
  }
  Refuse(key, absl::StrCat("a whole number from ", min, " to ", max));
  return min;
}

int64_t HfFields::IntOr(absl::string_view key, int64_t absent, int64_t min, int64_t max) const {
  return Has(key) ? Int(key, min, max) : absent;
}

double HfFields::Number(absl::string_view key, double min, double max) const {
  const Json* value = Find(key);
  if (value != nullptr && value->is_number()) {
    const double number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  Refuse(key, absl::StrCat("a number from ", min, " to ", max));
  return min;
}

double HfFields::NumberOr(absl::string_view key, double absent, double min, double max) const {
  return Has(key) ? Number(key, min, max) : absent;
}

bool HfFields::BoolOr(absl::string_view key, bool absent) const {
  const Json* value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(key, "true or false");
  return absent;
}

std::string HfFields::StringOr(absl::string_view key, absl::string_view absent) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::string(absent);
  if (value->is_string()) return value->get<std::string>();
  Refuse(key, "a string");
  return std::string(absent);
}

void HfFields::Demand(absl::string_view key, bool allowed, bool absent, absl::string_view why) const {
  const Json* value = Find(key);
  if (value == nullptr ? absent == allowed : value->is_boolean() && value->get<bool>() == allowed) return;
  Refuse(key, absl::StrCat(allowed ? "true" : "false", why.empty() ? "" : ", ", why));
}

}  // namespace shale
