// Conversation: messages, and what a chat template may read besides. Also finds what the assistant says in the text
// that a template makes of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/chat/template_parser.h"
#include "engine/text/chat/template_value.h"

namespace shale {

struct ChatMessage {
  ChatMessage(std::string role, std::string content);
  explicit ChatMessage(TemplateValue::Dict members, bool counts = true) : members(std::move(members)), counts(counts) {}

  // Returns the member "role", or "" if that is no string.
  std::string role() const;

  TemplateValue::Dict members;  // In the order of the row. None is null.
  bool counts = true;           // Whether the message counts in the loss, if it is an answer.
};

struct Conversation {
  std::vector<ChatMessage> messages;
  TemplateValue tools = TemplateValue::None();      // A list of mappings, or none.
  TemplateValue documents = TemplateValue::None();  // A list of mappings, or none.
  TemplateValue::Dict variables;                    // What chat_template_kwargs gives the template.
};

// A string of a conversation that the text must have.
struct ChatSource {
  std::string text;
  std::string place;  // "message 2: \"content\"".
  bool system = false;
  // Whether the text has it if these bytes stand anywhere in it. Else some of the bytes there must come from it.
  bool anywhere = false;
};

// A conversation whose strings are numbered. Texts made of its values know which parts come from which string
// (TextOrigin). Messages have the names that transformers gives to what an assistant thinks: reasoning_content and
// thinking, if they have one of these or reasoning.
struct NumberedConversation {
  TemplateValue::List messages;
  TemplateValue tools, documents;
  TemplateValue::Dict variables;
  std::vector<ChatSource> sources;
  std::vector<std::pair<int32_t, int32_t>> sources_of;  // By message, the numbers [first, second) of its strings.
  double bytes = 0;                                     // Of all texts.
};

NumberedConversation Numbered(const Conversation& conversation);

// Returns what `text`, made of the conversation, leaves out first, for a message: "message 1: ...". Returns "" if it
// has all that must stand in it. White space may be missing, and be added.
std::string LeftOut(const NumberedConversation& conversation, const TemplateText& text);

// Returns the parts of a text that come from the conversation: begin, end, begin, end, ... as ascending offsets.
std::vector<size_t> SaidParts(const TemplateText& text);

// Returns the turns that a template marks with {% generation %}, without those of messages that do not count. Returns
// InvalidArgument if it marks none though the assistant speaks, and if it cannot be told which message a turn is of.
absl::StatusOr<std::vector<size_t>> MarkedTurns(const Conversation& conversation, const NumberedConversation& numbered,
                                                const RenderedTemplate& all);

// Finds the turns in the text of a template that marks none. Borrows its arguments.
class TurnFinder {
 public:
  TurnFinder(const NumberedConversation& conversation, const TemplateText& text);

  // Adds the turn of message `index`, if it counts. `prompt` is the text of the messages before it, with a generation
  // prompt, and `shorter` that of the messages up to it. Returns InvalidArgument if the text begins in another way, or
  // if what the assistant said changes when the conversation goes on. REQUIRES: messages rise.
  absl::Status Add(size_t index, const TemplateText& prompt, const TemplateText& shorter, bool counts);

  std::vector<size_t> TakeTurns() { return std::move(turns_); }

 private:
  const NumberedConversation& conversation_;
  const TemplateText& text_;
  std::vector<size_t> turns_;
  size_t last_end_ = 0;  // Of the turn before, whether it counts or not.
};

}  // namespace shale
