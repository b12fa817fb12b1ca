#include "engine/tokenize/chat_turns.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

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
