// Conversation: messages, and what a chat template may read besides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenize/template_value.h"

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

}  // namespace shale
