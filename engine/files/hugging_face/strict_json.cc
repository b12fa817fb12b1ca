#include "engine/files/hugging_face/strict_json.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Checks the text without building anything. Stops at the first error.
class Checker : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool string(string_t&) override { return Value(); }
  bool binary(binary_t&) override { return Value(); }
  bool start_object(std::size_t) override { return Count() && Open(); }
  bool start_array(std::size_t) override { return Value() && Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    return names_.back().insert(name).second || Fail(absl::StrCat(ShortJsonQuote(name), " occurs twice"));
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;  // As nlohmann-json documents it.
    if (error.id == kNumberOverflow) return Fail(absl::StrCat("the number ", token, " is too large"));
    if (absl::StrContains(error.what(), "surrogate")) {
      return Fail(absl::StrCat("the string at its byte ", position,
                               " has half of a pair of surrogates (\\ud800 to \\udfff), which is no character"));
    }
    return Fail(absl::StrCat("it is not JSON at its byte ", position));
  }

 private:
  bool Fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  bool Count() {
    return ++values_ <= kMaxJsonValues || Fail(absl::StrCat("it has more than ", kMaxJsonValues, " values"));
  }
  bool Value() { return (!names_.empty() || Fail("it is not an object between { and }")) && Count(); }
  bool Open() {
    names_.emplace_back();
    return names_.size() <= kMaxJsonDepth || Fail(absl::StrCat("it nests deeper than ", kMaxJsonDepth, " levels"));
  }
  bool Close() {
    names_.pop_back();
    return true;
  }

  std::vector<absl::flat_hash_set<std::string>> names_;  // By open object or array, outermost first.
  int values_ = 0;
  std::string error_;
};

constexpr size_t kMaxErrors = 20;
constexpr size_t kLongestKey = 64;  // Keys with a meaning are shorter. A file may contain longer ones.

// Returns a key in a form for messages: bare if it is a word, else quoted.
std::string ShownKey(absl::string_view key) {
  const bool word = key.size() <= kLongestKey &&
                    std::all_of(key.begin(), key.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
  return word ? std::string(key) : ShownJson(Json(std::string(key)));
}

}  // namespace

absl::Status CheckStrictJson(absl::string_view text) {
  Checker checker;
  if (!Json::sax_parse(text.begin(), text.end(), &checker)) return absl::InvalidArgumentError(checker.error());
  // The parser takes a zero byte behind the value for the end of the text, and drops what follows.
  const size_t zero = text.find('\0');
  if (zero == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it is not JSON at its byte ", zero + 1, ", which is zero"));
}

absl::StatusOr<Json> ParseStrictJson(absl::string_view text) {
  SHALE_RETURN_IF_ERROR(CheckStrictJson(text));
  return Json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
}

std::string ShownJson(const Json& value) {
  // By default dump throws on text that is not UTF-8. `replace` prevents that.
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  constexpr size_t kMaxShown = 80;
  return text.size() <= kMaxShown ? text : absl::StrCat(text.substr(0, kMaxShown), "...");
}

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
