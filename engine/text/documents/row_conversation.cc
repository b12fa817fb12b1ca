#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "engine/text/chat/template_operations.h"
#include "engine/text/documents/text_row.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

// Members of a message that hold what a model of text alone cannot learn.
constexpr absl::string_view kMedia[] = {"image", "images", "image_url", "video", "videos", "audio", "audios"};
// Arguments of apply_chat_template that are no variables of a template.
constexpr absl::string_view kArguments[] = {"conversation",
                                            "messages",
                                            "tools",
                                            "documents",
                                            "chat_template",
                                            "add_generation_prompt",
                                            "continue_final_message",
                                            "tokenize",
                                            "sanitize_control_tokens",
                                            "padding",
                                            "truncation",
                                            "max_length",
                                            "return_tensors",
                                            "return_dict",
                                            "return_assistant_tokens_mask",
                                            "tokenizer_kwargs"};

template <class... Args>
absl::Status WrongRow(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

bool IsEmpty(const Value& value) { return !value.truth() && !value.is_number(); }

// Reads whether a message counts: "train", "weight", or both if they agree.
absl::StatusOr<std::optional<bool>> CountsOf(const Value& message, const std::string& place) {
  std::optional<bool> counts;
  for (const char* name : {"train", "weight"}) {
    const Value* value = message.Find(name);
    if (value == nullptr || value->is(ValueKind::kNone)) continue;
    std::optional<bool> found;
    const double weight = value->is(ValueKind::kFloat) ? value->real : static_cast<double>(value->number);
    const bool is_number = value->is_number() || value->is(ValueKind::kFloat);
    if (is_number && (weight == 0 || weight == 1)) found = weight == 1;
    if (!found) {
      return WrongRow(place, "\"", name, "\": found ", ShownValue(*value), "; wanted true or false, or 1 or 0");
    }
    if (counts && *counts != *found) return WrongRow(place, "\"train\" and \"weight\" say different things");
    counts = found;
  }
  return counts;
}

// Checks what a message says: a string, or a list of parts that are text.
absl::Status CheckContent(const Value& content, const std::string& place) {
  if (content.is(ValueKind::kString)) return absl::OkStatus();
  if (!content.is(ValueKind::kList)) {
    return WrongRow(place, "\"content\": found ", ShownValue(content), "; wanted a string or a list of parts");
  }
  for (const Value& part : *content.list) {
    const Value* type = part.Find("type");
    const Value* text = part.Find("text");
    const bool good = type != nullptr && type->is(ValueKind::kString) && type->text() == "text" && text != nullptr &&
                      text->is(ValueKind::kString);
    if (good) continue;
    return WrongRow(place, "\"content\": found the part ", ShownValue(part),
                    "; wanted {\"type\": \"text\", \"text\": \"...\"}: models here read text alone");
  }
  return absl::OkStatus();
}

absl::StatusOr<ChatMessage> ReadMessage(const Value& one, size_t index) {
  const std::string place = absl::StrCat("message ", index, ": ");
  if (!one.is(ValueKind::kDict)) {
    return WrongRow(place, "found ", ShownValue(one), "; wanted an object with \"role\" and \"content\"");
  }
  const Value* role = one.Find("role");
  if (role == nullptr || !role->is(ValueKind::kString))
    return WrongRow(place, "\"role\" is missing, or is not a string");
  Value::Dict members;
  bool says = false;
  for (const auto& [name, value] : *one.dict) {
    if (value.is(ValueKind::kNone)) {
      // Templates tell by it that a message calls tools. Other members are null where rows came from a table.
      if (name == "content") members.emplace_back(name, Value::NoContent());
      continue;
    }
    if (name == "content") SHALE_RETURN_IF_ERROR(CheckContent(value, place));
    const bool media = std::find(std::begin(kMedia), std::end(kMedia), name) != std::end(kMedia);
    if (media && !IsEmpty(value)) {
      return WrongRow(place, Quoted(name), " is not supported: found ", ShownValue(value),
                      "; models here read text alone");
    }
    says = says || name == "content" || name == "tool_calls" || name == "reasoning_content" || name == "thinking" ||
           name == "reasoning" || name == "function_call";
    members.emplace_back(name, value);
  }
  if (!says) return WrongRow(place, "it has neither \"content\" nor \"tool_calls\"");
  SHALE_ASSIGN_OR_RETURN(const std::optional<bool> counts, CountsOf(one, place));
  if (counts.value_or(false) && role->text() != "assistant") {
    return WrongRow(place, "it is to count, and its role is ", Quoted(role->text()),
                    "; only answers, of the role \"assistant\", count");
  }
  return ChatMessage(std::move(members), counts.value_or(true));
}

// Returns a list of objects of a row, or none.
absl::StatusOr<Value> ReadObjects(const Value& row, const char* name) {
  const Value* found = row.Find(name);
  if (found == nullptr || found->is(ValueKind::kNone)) return Value::None();
  const bool good = found->is(ValueKind::kList) && std::all_of(found->list->begin(), found->list->end(),
                                                               [](auto& one) { return one.is(ValueKind::kDict); });
  if (good) return *found;
  return WrongRow("\"", name, "\": found ", ShownValue(*found), "; wanted a list of objects",
                  found->is(ValueKind::kString) ? ", not their JSON in a string" : "");
}

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

absl::StatusOr<Conversation> ReadConversation(const Value& row) {
  const Value& list = *row.Find("messages");
  if (!list.is(ValueKind::kList) || list.list->empty()) {
    return WrongRow("\"messages\": found ", ShownValue(list), "; wanted a list of messages");
  }
  Conversation conversation;
  bool answers = false, counts = false;
  for (const Value& one : *list.list) {
    SHALE_ASSIGN_OR_RETURN(ChatMessage message, ReadMessage(one, conversation.messages.size()));
    const bool answer = message.role() == "assistant";
    answers = answers || answer;
    counts = counts || (answer && message.counts);
    conversation.messages.push_back(std::move(message));
  }
  if (answers && !counts) return WrongRow("\"messages\": no answer counts, by their \"train\" or \"weight\"");
  SHALE_ASSIGN_OR_RETURN(conversation.tools, ReadObjects(row, "tools"));
  SHALE_ASSIGN_OR_RETURN(conversation.documents, ReadObjects(row, "documents"));
  const Value* variables = row.Find("chat_template_kwargs");
  if (variables == nullptr || variables->is(ValueKind::kNone)) return conversation;
  if (!variables->is(ValueKind::kDict)) {
    return WrongRow("\"chat_template_kwargs\": found ", ShownValue(*variables), "; wanted an object");
  }
  for (const auto& [name, value] : *variables->dict) {
    if (std::find(std::begin(kArguments), std::end(kArguments), name) != std::end(kArguments)) {
      return WrongRow("\"chat_template_kwargs\": ", Quoted(name),
                      " is an argument of apply_chat_template, and no variable");
    }
    conversation.variables.emplace_back(name, value);
  }
  return conversation;
}

std::string ShownValue(const Value& value) {
  TemplateBudget budget(0);
  const absl::StatusOr<TemplateText> json = AsJson(value, -1, budget);
  return json.ok() ? ShownJson(Json::parse(json->bytes, /*cb=*/nullptr, /*allow_exceptions=*/false)) : value.type();
}

absl::StatusOr<TemplateValue> ParseRowJson(absl::string_view line) {
  if (!IsUtf8(line)) return absl::InvalidArgumentError("it is not UTF-8");
  SHALE_RETURN_IF_ERROR(CheckStrictJson(line));
  RowBuilder builder;
  Json::sax_parse(line.begin(), line.end(), &builder);
  return builder.TakeRow();
}

}  // namespace shale
