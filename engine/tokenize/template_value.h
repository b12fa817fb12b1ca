// TemplateValue: a value of a chat template, as Python has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

inline constexpr int kMaxNesting = 100;                    // Of lists and dicts that a template makes in each other.
inline constexpr size_t kMostTextBytes = size_t{1} << 28;  // Of a string that a template makes.

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
  // Lists and dicts: one more than the deepest of their elements when they were made. What a template makes is at most
  // kMaxNesting deep, so that values may be walked by recursion.
  int depth = 0;
  // Whether it is a namespace or holds one. A namespace gets no such attribute, so it never holds itself.
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
  bool truth() const;
  bool operator==(const TemplateValue& other) const;
  // Returns the element of a dict, or null.
  const TemplateValue* Find(absl::string_view name) const;
};

// Returns what `{{ value }}` writes. Returns InvalidArgument for lists and dicts, which Python writes in its own way.
absl::StatusOr<std::string> Printed(const TemplateValue& value);
// Returns a value as JSON, as transformers' `tojson` writes it. Returns InvalidArgument for undefined values, and for
// more than kMostTextBytes.
absl::StatusOr<std::string> AsJson(const TemplateValue& value);

}  // namespace shale
