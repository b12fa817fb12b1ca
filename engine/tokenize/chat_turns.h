// Finds what the assistant says in the text of a conversation.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tokenize/conversation.h"
#include "engine/tokenize/template_render.h"

namespace shale {

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
