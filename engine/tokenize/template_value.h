// TemplateValue: a value of a chat template, as Python has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shale {

// Limits of the values that a template makes: levels of lists and dicts in each other, bytes of a string, and elements
// of a list.
inline constexpr int kMaxNesting = 100;
inline constexpr size_t kMaxTextBytes = size_t{1} << 28;
inline constexpr int64_t kMaxElements = 1 << 20;

// A handle that is cheap to copy. Strings are well-formed UTF-8.
struct TemplateValue {
  enum class Kind { kUndefined, kNone, kBool, kInteger, kString, kList, kDict };
  using List = std::vector<TemplateValue>;
  using Dict = std::vector<std::pair<std::string, TemplateValue>>;  // In order of insertion. Small.

  Kind kind = Kind::kUndefined;
  int64_t number = 0;          // The value of kBool and kInteger. 1 for a kDict that is a namespace.
  std::string text;            // The value of kString. For kUndefined, the name that was not found.
  std::shared_ptr<List> list;  // The value of kList.
  std::shared_ptr<Dict> dict;  // The value of kDict.
  // The levels of lists and dicts in each other when the value was made; 0 for other kinds. At most kMaxNesting, so
  // that recursion over a value is safe.
  int depth = 0;
  // Whether the value is a namespace or holds one. No attribute of a namespace can be set to such a value. Therefore no
  // value holds itself.
  bool has_namespace = false;

  static TemplateValue Undefined(std::string name) { return {.text = std::move(name)}; }
  static TemplateValue None() { return {.kind = Kind::kNone}; }
  static TemplateValue Bool(bool value) { return {.kind = Kind::kBool, .number = value}; }
  static TemplateValue Integer(int64_t value) { return {.kind = Kind::kInteger, .number = value}; }
  static TemplateValue Text(absl::string_view value) { return {.kind = Kind::kString, .text = std::string(value)}; }
  static TemplateValue Of(List values);
  static TemplateValue Of(Dict values);

  bool is(Kind other) const { return kind == other; }
  bool is_number() const { return kind == Kind::kBool || kind == Kind::kInteger; }
  // Returns the name of the type, for messages: "a string".
  const char* type() const;
  // Returns whether the value is true as a condition.
  bool truth() const;
  bool operator==(const TemplateValue& other) const;
  // Returns the element of a dict, or null.
  const TemplateValue* Find(absl::string_view name) const;
};

// Returns what `{{ value }}` writes. Returns InvalidArgument for lists and dicts, which are not supported.
absl::StatusOr<std::string> Printed(const TemplateValue& value);
// Returns a value as JSON, in the form of transformers' `tojson`. Returns InvalidArgument for undefined values, and for
// more than kMaxTextBytes.
absl::StatusOr<std::string> AsJson(const TemplateValue& value);

// Returns InvalidArgument with the arguments as its message. RenderTemplate adds the line.
template <class... Args>
absl::Status TemplateError(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}
// Returns an error if a string of so many bytes is longer than kMaxTextBytes.
absl::Status CheckTextLength(double bytes);

}  // namespace shale
