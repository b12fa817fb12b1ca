// TemplateValue: a value of a chat template, as Python has it. TemplateBudget bounds what the rendering of a template
// builds and does.
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

// Counts the bytes of all values that a rendering makes, and of those that it reads through, while it does so. It never
// gives bytes back, so one bound holds memory and time. Used by one thread.
class TemplateBudget {
 public:
  // What a template may build in any case: a quarter of a GiB.
  static constexpr double kLeastBytes = 1 << 28;
  // How often a template may build the conversation besides.
  static constexpr double kTimesInput = 16;
  // Bytes that an element of a list takes, and a string of its own.
  static constexpr double kElementBytes = 160;

  // `input_bytes` is the size of the conversation.
  explicit TemplateBudget(double input_bytes) : left_(kLeastBytes + kTimesInput * input_bytes) {}

  // Takes `bytes`, before they are built. Returns InvalidArgument without a line if they are more than what is left.
  absl::Status Take(double bytes) {
    left_ -= bytes;
    if (left_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "the template builds too much: more than 256 MiB and 16 times the conversation in all");
  }
  absl::Status TakeElements(double count) { return Take(count * kElementBytes); }

 private:
  double left_;
};

// Limits of the values that a template makes: levels of lists and dicts in each other, and elements of a list.
inline constexpr int kMaxNesting = 100;
inline constexpr int64_t kMaxElements = 1 << 20;
// The kinds of objects (TemplateValue::number).
inline constexpr int64_t kNamespace = 1, kLoopState = 2;

// A part of a text that was copied from a string of the conversation.
struct TextOrigin {
  size_t begin = 0, end = 0;  // Bytes of the text.
  int32_t source = 0;         // The number of the string.
  // Bytes of the string. They stand in the text as they are, or as one escape of JSON.
  size_t from = 0, to = 0;

  bool as_it_is() const { return end - begin == to - from; }
  bool operator==(const TextOrigin&) const = default;
};

// A text, and which parts of it come from the conversation. What the template writes itself, and what it changes, has
// no origin.
struct TemplateText {
  std::string bytes;                // Well-formed UTF-8.
  std::vector<TextOrigin> origins;  // Ascending, and apart from each other.

  void Append(const TemplateText& more);
  void Append(absl::string_view more) { bytes.append(more.data(), more.size()); }
  // Returns bytes [begin, end).
  TemplateText Part(size_t begin, size_t end) const;
};

// A handle that is cheap to copy. Strings are shared, and immutable.
struct TemplateValue {
  enum class Kind { kUndefined, kNone, kBool, kInteger, kFloat, kString, kList, kDict, kFunction };
  using List = std::vector<TemplateValue>;
  using Dict = std::vector<std::pair<std::string, TemplateValue>>;  // In order of insertion.

  // What a kList is in Python.
  enum class Form {
    kList,
    kTuple,
    kRange,
    kView,       // Of a dict: items(), keys() or values(). Has no element at an index.
    kGenerator,  // What filters such as selectattr return: whoever reads its elements takes them away. Is always true.
  };

  Kind kind = Kind::kUndefined;
  Form form = Form::kList;
  // The levels of lists and dicts in each other when the value was made; 0 for other kinds. At most kMaxNesting, so
  // that recursion over a value is safe.
  int depth = 0;
  // Whether the value is a namespace or holds one. No attribute of a namespace can be set to such a value. Therefore no
  // value holds itself.
  bool has_namespace = false;
  // The value of kBool and kInteger. For kNone, 1 if it is what a message says. For a kDict, whether it is an object
  // with attributes: a namespace, whose attributes can be set, or the state of a loop.
  int64_t number = 0;
  double real = 0;  // The value of kFloat.
  // The value of kString. For kUndefined and kFunction its name. For a kFloat that is an integer too large for
  // `number`, its digits. Else null.
  std::shared_ptr<const TemplateText> string;
  std::shared_ptr<List> list;  // The value of kList.
  std::shared_ptr<Dict> dict;  // The value of kDict.

  static TemplateValue Undefined(absl::string_view name) { return Named(Kind::kUndefined, {std::string(name), {}}); }
  static TemplateValue Function(absl::string_view name) { return Named(Kind::kFunction, {std::string(name), {}}); }
  static TemplateValue None() { return {.kind = Kind::kNone}; }
  // None in the place of what a message says. Printed refuses it.
  static TemplateValue NoContent() { return {.kind = Kind::kNone, .number = 1}; }
  static TemplateValue Bool(bool value) { return {.kind = Kind::kBool, .number = value}; }
  static TemplateValue Integer(int64_t value) { return {.kind = Kind::kInteger, .number = value}; }
  static TemplateValue Float(double value) { return {.kind = Kind::kFloat, .real = value}; }
  static TemplateValue LargeInteger(double value, absl::string_view digits);
  static TemplateValue Text(absl::string_view value) { return Text(TemplateText{std::string(value), {}}); }
  static TemplateValue Text(TemplateText value) { return Named(Kind::kString, std::move(value)); }
  static TemplateValue Of(List values, Form form = Form::kList);
  static TemplateValue Of(Dict values);

  bool is(Kind other) const { return kind == other; }
  bool is_object() const { return kind == Kind::kDict && number != 0; }
  bool is_number() const { return kind == Kind::kBool || kind == Kind::kInteger; }
  bool is_large_integer() const { return kind == Kind::kFloat && string != nullptr; }
  // Returns the bytes of `string`. REQUIRES: it is not null.
  const std::string& text() const { return string->bytes; }
  // Returns the name of the type, for messages: "a string".
  const char* type() const;
  // Returns whether the value is true as a condition.
  bool truth() const;
  // Returns the element of a dict, or null.
  const TemplateValue* Find(absl::string_view name) const;

 private:
  static TemplateValue Named(Kind kind, TemplateText text);
};

// Returns what `{{ value }}` writes. Returns InvalidArgument for lists and dicts, which are not supported, and for null
// content, which nobody wants to train as "None".
absl::StatusOr<std::shared_ptr<const TemplateText>> Printed(const TemplateValue& value);
// Returns whether two values are equal in Python.
absl::StatusOr<bool> Equal(const TemplateValue& a, const TemplateValue& b, TemplateBudget& budget);

// Returns InvalidArgument with the arguments as its message. RenderTemplate adds the line.
template <class... Args>
absl::Status TemplateError(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

}  // namespace shale
