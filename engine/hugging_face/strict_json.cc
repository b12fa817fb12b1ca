#include "engine/hugging_face/strict_json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"
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

}  // namespace shale
