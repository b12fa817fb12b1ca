// TemplateValue: a value of a chat template, as Python has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// A handle that is cheap to copy. Strings are well-formed UTF-8.
struct TemplateValue {
  enum class Kind { kUndefined, kNone, kBool, kInteger, kString, kList, kDict };
  using List = std::vector<TemplateValue>;
  using Dict = std::vector<std::pair<std::string, TemplateValue>>;  // In order of insertion. Small.

  Kind kind = Kind::kUndefined;
  int64_t number = 0;  // Of kBool and kInteger.
  std::string text;    // Of kString; of kUndefined, the name that was not found.
  std::shared_ptr<List> list;
  std::shared_ptr<Dict> dict;

  static TemplateValue Undefined(std::string name) { return {.text = std::move(name)}; }
  static TemplateValue None() { return {.kind = Kind::kNone}; }
  static TemplateValue Bool(bool value) { return {.kind = Kind::kBool, .number = value}; }
  static TemplateValue Integer(int64_t value) { return {.kind = Kind::kInteger, .number = value}; }
  static TemplateValue Text(absl::string_view value) { return {.kind = Kind::kString, .text = std::string(value)}; }
  static TemplateValue Of(List values) {
    return {.kind = Kind::kList, .list = std::make_shared<List>(std::move(values))};
  }
  static TemplateValue Of(Dict values) {
    return {.kind = Kind::kDict, .dict = std::make_shared<Dict>(std::move(values))};
  }

  bool is(Kind other) const { return kind == other; }
  bool is_number() const { return kind == Kind::kBool || kind == Kind::kInteger; }
  // Returns the name of the type, for messages: "a string".
  const char* type() const;
  bool truth() const;
  bool operator==(const TemplateValue& other) const;
  // Returns the element of a dict, or null.
  const TemplateValue* Find(absl::string_view name) const;
};

// Returns what `{{ value }}` writes. Returns InvalidArgument for lists and dicts, which Python writes in its own way.
absl::StatusOr<std::string> Printed(const TemplateValue& value);
// Returns a value as JSON, as transformers' `tojson` writes it. Returns InvalidArgument for undefined values.
absl::StatusOr<std::string> AsJson(const TemplateValue& value);

}  // namespace shale
