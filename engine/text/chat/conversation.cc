#include "engine/text/chat/conversation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "engine/text/chat/template_operations.h"
#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

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

// Returns the first and the last byte, and one more, of what comes from the sources [first, second).
std::optional<std::pair<size_t, size_t>> PlacesOf(const TemplateText& text, std::pair<int32_t, int32_t> sources) {
  std::optional<std::pair<size_t, size_t>> places;
  for (const TextOrigin& origin : text.origins) {
    if (origin.source < sources.first || origin.source >= sources.second) continue;
    places = {places ? places->first : origin.begin, origin.end};
  }
  return places;
}

absl::Status TurnError(size_t index, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("message ", index, ": ", what));
}

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

std::vector<size_t> SaidParts(const TemplateText& text) {
  std::vector<size_t> parts;
  for (const TextOrigin& origin : text.origins) {
    if (!parts.empty() && parts.back() == origin.begin) {
      parts.back() = origin.end;
    } else {
      parts.insert(parts.end(), {origin.begin, origin.end});
    }
  }
  return parts;
}

absl::StatusOr<std::vector<size_t>> MarkedTurns(const Conversation& conversation, const NumberedConversation& numbered,
                                                const RenderedTemplate& all) {
  const std::vector<ChatMessage>& messages = conversation.messages;
  const bool some_do_not_count = std::any_of(messages.begin(), messages.end(), [](const ChatMessage& message) {
    return message.role() == "assistant" && !message.counts;
  });
  const bool speaks = std::any_of(messages.begin(), messages.end(),
                                  [](const ChatMessage& message) { return message.role() == "assistant"; });
  std::vector<size_t> turns;
  for (const auto& [begin, end] : all.generations) {
    if (begin == end) continue;
    bool counts = true;
    if (some_do_not_count) {
      const TemplateText part = all.text.Part(begin, end);
      std::optional<size_t> of;
      for (size_t i = 0; i < messages.size(); ++i) {
        if (!PlacesOf(part, numbered.sources_of[i])) continue;
        if (of && messages[*of].counts != messages[i].counts) {
          return TurnError(i, "the template marks it together with another message, which counts in another way");
        }
        of = i;
      }
      if (!of) {
        return absl::InvalidArgumentError(
            "a message does not count, and the template marks an answer (generation) that has nothing of any message");
      }
      counts = messages[*of].counts;
    }
    if (counts) turns.insert(turns.end(), {begin, end});
  }
  if (all.generations.empty() && speaks) {
    return absl::InvalidArgumentError("the template marks no answer of this conversation with {% generation %}");
  }
  return turns;
}

TurnFinder::TurnFinder(const NumberedConversation& conversation, const TemplateText& text)
    : conversation_(conversation), text_(text) {}

absl::Status TurnFinder::Add(size_t index, const TemplateText& prompt, const TemplateText& shorter, bool counts) {
  const absl::string_view text = text_.bytes;
  size_t begin = std::mismatch(text.begin(), text.end(), prompt.bytes.begin(), prompt.bytes.end()).first - text.begin();
  if (begin < prompt.bytes.size()) {
    // The text goes on in another way than the prompt does. That is where the answer begins, if all that was said
    // before stands before it.
    while (begin > 0 && begin < text.size() && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    const auto before = PlacesOf(text_, {0, conversation_.sources_of[index].first});
    const auto in_prompt = PlacesOf(prompt, {0, conversation_.sources_of[index].first});
    const auto own = PlacesOf(text_, conversation_.sources_of[index]);
    const bool after_all = (!before || before->second <= begin) && (!in_prompt || in_prompt->second <= begin);
    if (!after_all || (own && own->first < begin && own->second <= begin)) {
      return TurnError(index, "the template does not begin it with the generation prompt");
    }
  }
  if (begin < last_end_) return TurnError(index, "the template ends its generation prompt within an earlier turn");
  size_t end = shorter.bytes.size();
  if (!absl::StartsWith(text, shorter.bytes)) {
    // The template writes the last message of a conversation in another way than the messages before it.
    const auto here = PlacesOf(text_, conversation_.sources_of[index]);
    const auto there = PlacesOf(shorter, conversation_.sources_of[index]);
    if (!here || !there) {
      return TurnError(index, "the template changes what the assistant said when the conversation goes on");
    }
    const absl::string_view ending = absl::string_view(shorter.bytes).substr(there->second);
    if (!absl::StartsWith(text.substr(here->second), ending)) {
      return TurnError(index, "the template changes what it writes behind it when the conversation goes on");
    }
    end = here->second + ending.size();
  }
  if (end < begin) return TurnError(index, "the template ends it before it begins");
  last_end_ = end;
  if (counts) turns_.insert(turns_.end(), {begin, end});
  return absl::OkStatus();
}

}  // namespace shale
