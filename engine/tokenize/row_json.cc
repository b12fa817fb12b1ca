#include "engine/tokenize/row_json.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/text/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Builds values. The text must be known to be good.
class RowBuilder : public nlohmann::json_sax<Json> {
 public:
  TemplateValue TakeRow() { return std::move(row_); }

  bool null() override { return Add(TemplateValue::None()); }
  bool boolean(bool value) override { return Add(TemplateValue::Bool(value)); }
  bool number_integer(number_integer_t value) override { return Add(TemplateValue::Integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return Add(TemplateValue::Integer(static_cast<int64_t>(value)));
    return Add(TemplateValue::LargeInteger(static_cast<double>(value), absl::StrCat(value)));
  }
  bool number_float(number_float_t value, const string_t& digits) override {
    const bool integer = digits.find_first_of(".eE") == std::string::npos;
    return Add(integer ? TemplateValue::LargeInteger(value, digits) : TemplateValue::Float(value));
  }
  bool string(string_t& text) override { return Add(TemplateValue::Text(TemplateText{std::move(text), {}})); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(/*object=*/true); }
  bool start_array(std::size_t) override { return Open(/*object=*/false); }
  bool key(string_t& name) override {
    open_.back().name = std::move(name);
    return true;
  }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  struct Container {
    bool object = false;
    std::string name;  // Of the member that comes next.
    TemplateValue::List list;
    TemplateValue::Dict dict;
  };

  bool Add(TemplateValue value) {
    if (open_.empty()) {
      row_ = std::move(value);
    } else if (open_.back().object) {
      open_.back().dict.emplace_back(std::move(open_.back().name), std::move(value));
    } else {
      open_.back().list.push_back(std::move(value));
    }
    return true;
  }
  bool Open(bool object) {
    open_.push_back({.object = object});
    return true;
  }
  bool Close() {
    Container done = std::move(open_.back());
    open_.pop_back();
    return Add(done.object ? TemplateValue::Of(std::move(done.dict)) : TemplateValue::Of(std::move(done.list)));
  }

  std::vector<Container> open_;
  TemplateValue row_;
};

}  // namespace

absl::StatusOr<TemplateValue> ParseRowJson(absl::string_view line) {
  if (!IsUtf8(line)) return absl::InvalidArgumentError("it is not UTF-8");
  SHALE_RETURN_IF_ERROR(CheckStrictJson(line));
  RowBuilder builder;
  Json::sax_parse(line.begin(), line.end(), &builder);
  return builder.TakeRow();
}

}  // namespace shale
