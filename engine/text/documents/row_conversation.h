// Reads the conversation of a row of data. ParseRowJson reads a line of JSON Lines into values whose members keep their
// order.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/chat/conversation.h"
#include "engine/text/chat/template_value.h"

namespace shale {

// Returns the conversation of a row that has "messages": these, and its "tools", "documents" and
// "chat_template_kwargs", which a template reads as those that apply_chat_template is given. Null members of the row
// and of messages are as none. "train" (true or false) and "weight" (0 or 1) of a message say whether it counts.
// Returns InvalidArgument with the place of what has another form, of parts of messages that are no text, and of
// answers that count in a row of none.
absl::StatusOr<Conversation> ReadConversation(const TemplateValue& row);

// Returns a value for a message, on one line and cut.
std::string ShownValue(const TemplateValue& value);

// Returns the dict that a line is. Accepts any bytes. Returns InvalidArgument for bytes that are not UTF-8, and the
// errors of ParseStrictJson.
absl::StatusOr<TemplateValue> ParseRowJson(absl::string_view line);

}  // namespace shale
