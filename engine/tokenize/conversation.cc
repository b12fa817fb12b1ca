#include "engine/tokenize/conversation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/text/quote.h"
#include "engine/text/utf8.h"
#include "engine/tokenize/character.h"
#include "engine/tokenize/template_operators.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ValueKind = TemplateValue::Kind;

// The names of what an assistant thinks, as in transformers.
constexpr absl::string_view kThoughts[] = {"reasoning_content", "thinking", "reasoning"};
// Members that tell things apart or say how to read them. A template need not write them.
constexpr absl::string_view kMarks[] = {"role", "type", "id", "tool_call_id", "index", "train", "weight"};

bool IsOneOf(absl::string_view name, absl::Span<const absl::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Numbers the strings of a conversation.
class Numberer {
 public:
  explicit Numberer(NumberedConversation& out) : out_(out) {}

  Value Message(const ChatMessage& message, size_t index) {
    role_ = message.role();
    Value::Dict members;
    for (const auto& [name, value] : message.members) {
      place_ = absl::StrCat("message ", index, ": ", Quoted(name));
      anywhere_ = role_ == "tool" && name == "name";
      members.emplace_back(name, IsOneOf(name, kMarks) ? value : Walk(value, /*arguments=*/false));
    }
    anywhere_ = false;
    return Value::Of(WithThoughts(std::move(members)));
  }
  Value Other(const Value& value, const char* name) {
    role_.clear();
    place_ = Quoted(name);
    return Walk(value, /*arguments=*/false);
  }

 private:
  // Numbers the strings in a value. In the arguments of a call of a tool, also says that the text must have names and
  // numbers.
  Value Walk(const Value& value, bool arguments) {
    switch (value.kind) {
      case ValueKind::kString: return String(value.text());
      case ValueKind::kInteger:
      case ValueKind::kFloat:
        if (arguments) Wanted((*Printed(value))->bytes);
        return value;
      case ValueKind::kList: {
        Value::List all;
        for (const Value& element : *value.list) all.push_back(Walk(element, arguments));
        return Value::Of(std::move(all));
      }
      case ValueKind::kDict: {
        Value::Dict all;
        for (const auto& [name, element] : *value.dict) {
          if (arguments) Wanted(name);
          const bool mark = !arguments && IsOneOf(name, kMarks);
          all.emplace_back(
              name, mark && element.is(ValueKind::kString) ? element : Walk(element, arguments || name == "arguments"));
        }
        return Value::Of(std::move(all));
      }
      default: return value;
    }
  }
  Value String(const std::string& text) {
    if (text.empty()) return Value::Text("");
    const auto source = static_cast<int32_t>(out_.sources.size());
    Add(text, anywhere_);
    return Value::Text(TemplateText{text, {{.end = text.size(), .source = source, .to = text.size()}}});
  }
  void Wanted(absl::string_view text) { Add(std::string(text), /*anywhere=*/true); }
  void Add(std::string text, bool anywhere) {
    out_.bytes += static_cast<double>(text.size());
    out_.sources.push_back(
        {.text = std::move(text), .place = place_, .system = role_ == "system", .anywhere = anywhere});
  }

  static Value::Dict WithThoughts(Value::Dict members) {
    const auto find = [&](absl::string_view name) {
      return std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.first == name; });
    };
    for (const absl::string_view name : kThoughts) {
      const auto found = find(name);
      if (found == members.end()) continue;
      const Value thoughts = found->second;
      Value::Dict all;
      const auto thinking = find("thinking");
      all.emplace_back("thinking", thinking == members.end() ? thoughts : thinking->second);
      for (auto& member : members) {
        if (member.first != "thinking") all.push_back(std::move(member));
      }
      const auto content =
          std::find_if(all.begin(), all.end(), [](const auto& member) { return member.first == "reasoning_content"; });
      if (content == all.end()) {
        all.emplace_back("reasoning_content", thoughts);
      } else {
        content->second = thoughts;
      }
      return all;
    }
    return members;
  }

  NumberedConversation& out_;
  std::string role_, place_;
  bool anywhere_ = false;
};

// A text without white space.
struct Squeezed {
  std::string text;
  std::vector<size_t> places;  // Of each byte of `text`, where it stands in the text it was made of.
};

Squeezed Squeeze(absl::string_view text) {
  Squeezed squeezed;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    const char* begin = at;
    if (IsPythonSpace(NextCharacter(&at))) continue;
    squeezed.text.append(begin, at - begin);
    for (; begin < at; ++begin) squeezed.places.push_back(begin - text.data());
  }
  return squeezed;
}

// Looks for the strings of a conversation in a text.
class LeftOutFinder {
 public:
  LeftOutFinder(const NumberedConversation& conversation, const TemplateText& text)
      : text_(text), origins_(conversation.sources.size()) {
    for (const TextOrigin& origin : text.origins) origins_[origin.source].push_back(origin);
  }

  // Returns what the text lacks of a source, or "".
  std::string Missing(const ChatSource& source, size_t number) {
    if (source.anywhere) {
      if (FindText(text_.bytes, source.text, 0) != absl::string_view::npos) return "";
      return absl::StrCat("the template leaves out ", Quoted(source.text), " of it");
    }
    const std::vector<TextOrigin>& origins = origins_[number];
    std::vector<bool> stands(source.text.size());
    for (const TextOrigin& origin : origins) {
      std::fill(stands.begin() + static_cast<std::ptrdiff_t>(origin.from),
                stands.begin() + static_cast<std::ptrdiff_t>(origin.to), true);
    }
    const Squeezed wanted = Squeeze(source.text);
    const auto lacks = std::find_if(wanted.places.begin(), wanted.places.end(), [&](size_t i) { return !stands[i]; });
    if (lacks == wanted.places.end() || StandsWhole(wanted.text, origins)) return "";
    const int64_t bytes =
        std::count_if(wanted.places.begin(), wanted.places.end(), [&](size_t i) { return !stands[i]; });
    const std::string from = Quoted(absl::string_view(source.text).substr(*lacks));
    if (bytes == std::ssize(wanted.places)) return absl::StrCat("the template leaves it out: ", from);
    return absl::StrCat("the template leaves out, or changes, ", bytes, " of its ", wanted.places.size(),
                        " bytes that are not white space, the first in ", from);
  }

 private:
  // Returns whether a string stands in the text in one piece, but for white space, and a part of that piece comes from
  // it. So the template may itself write what it has cut from a message: <think> and </think>.
  bool StandsWhole(const std::string& wanted, const std::vector<TextOrigin>& origins) {
    constexpr int kMostTries = 64;
    if (origins.empty()) return false;
    if (!squeezed_) squeezed_ = Squeeze(text_.bytes);
    const auto index = [&](size_t place) {
      return static_cast<size_t>(std::lower_bound(squeezed_->places.begin(), squeezed_->places.end(), place) -
                                 squeezed_->places.begin());
    };
    const size_t first = index(origins.front().begin);
    size_t at = first < wanted.size() ? 0 : first - wanted.size();
    const absl::string_view near =
        absl::string_view(squeezed_->text).substr(0, index(origins.back().end) + wanted.size());
    for (int i = 0; i < kMostTries; ++i, ++at) {
      at = FindText(near, wanted, at);
      if (at == absl::string_view::npos) return false;
      const size_t begin = squeezed_->places[at], end = squeezed_->places[at + wanted.size() - 1] + 1;
      if (std::any_of(origins.begin(), origins.end(),
                      [&](const TextOrigin& origin) { return origin.begin < end && begin < origin.end; })) {
        return true;
      }
    }
    return false;
  }

  const TemplateText& text_;
  std::vector<std::vector<TextOrigin>> origins_;  // By source.
  std::optional<Squeezed> squeezed_;
};

}  // namespace

ChatMessage::ChatMessage(std::string role, std::string content)
    : members{{"role", TemplateValue::Text(role)}, {"content", TemplateValue::Text(content)}} {}

std::string ChatMessage::role() const {
  for (const auto& [name, value] : members) {
    if (name == "role" && value.is(ValueKind::kString)) return value.text();
  }
  return "";
}

NumberedConversation Numbered(const Conversation& conversation) {
  NumberedConversation out;
  Numberer numberer(out);
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const auto begin = static_cast<int32_t>(out.sources.size());
    out.messages.push_back(numberer.Message(conversation.messages[i], i));
    out.sources_of.emplace_back(begin, out.sources.size());
  }
  out.tools = numberer.Other(conversation.tools, "tools");
  out.documents = numberer.Other(conversation.documents, "documents");
  out.variables = conversation.variables;
  return out;
}

std::string LeftOut(const NumberedConversation& conversation, const TemplateText& text) {
  LeftOutFinder finder(conversation, text);
  for (size_t i = 0; i < conversation.sources.size(); ++i) {
    const ChatSource& source = conversation.sources[i];
    const std::string missing = finder.Missing(source, i);
    if (missing.empty()) continue;
    return absl::StrCat(source.place, ": ", missing,
                        source.system ? " (those of Mistral write what the system says only while the last message is "
                                        "of the user; put it before what the user says first)"
                                      : "");
  }
  return "";
}

}  // namespace shale
