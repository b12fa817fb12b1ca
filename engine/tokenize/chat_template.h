// ChatTemplate: turns conversations into text with the chat template of a Hugging Face folder.
//
// Templates are written in Jinja2. Supports the statements, filters, tests and methods that the templates of Llama,
// Mistral, Qwen and Falcon use for conversations (template_parser.h, template_filters.h, template_functions.h). Refuses
// others by name: statements when it reads the template, functions when a conversation reaches them. Tools and the date
// (strftime_now) are undefined, so a conversation always becomes the same text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_value.h"

namespace shale {

struct TemplateStatement;

struct ChatMessage {
  std::string role;
  std::string content;
  // Other fields of the message that a template may read, such as reasoning_content.
  std::vector<std::pair<std::string, std::string>> others;
};

// A conversation as text.
struct ChatText {
  std::string text;
  // What the assistant says: begin, end, begin, end, ... as ascending offsets in `text`. Each part includes what the
  // template writes after the message.
  std::vector<size_t> turns;
};

// Immutable. Safe for concurrent use by multiple threads.
class ChatTemplate {
 public:
  // Reads chat_template.jinja of a folder, or else `chat_template` in its tokenizer_config.json. The special tokens
  // that a template may read are those of the folder's tokenizer (ReadSpecialTokens). Returns NotFound if there is no
  // template, and InvalidArgument with file and line if it is not supported.
  static absl::StatusOr<ChatTemplate> Load(const std::string& folder);
  // Makes a template of its source, with special tokens by name, such as "bos_token".
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source,
                                            std::vector<std::pair<std::string, std::string>> special_tokens);

  // Returns a checksum of the template and of the special tokens that it may read.
  uint32_t digest() const { return digest_; }

  // Returns what apply_chat_template of transformers returns with tokenize=False. Returns InvalidArgument if the
  // template refuses the conversation or uses something that is not supported.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;
  // Returns the text of a conversation to train on, without a generation prompt. Returns the errors of Render, and
  // InvalidArgument if the text lacks a system message: the templates of Mistral leave it out if the last message is an
  // answer.
  absl::StatusOr<std::string> RenderAll(const std::vector<ChatMessage>& messages) const;
  // Returns the same text, and where the assistant speaks. A turn begins after the generation prompt of the messages
  // before it. Returns the errors of RenderAll, and InvalidArgument if the text does not begin with that prompt, if the
  // prompt ends within an earlier turn, or if the template changes what the assistant said when the conversation goes
  // on.
  absl::StatusOr<ChatText> RenderWithTurns(const std::vector<ChatMessage>& messages) const;

 private:
  std::shared_ptr<const std::vector<TemplateStatement>> statements_;
  TemplateValue special_tokens_;  // A dict from names to texts.
  uint32_t digest_ = 0;
};

}  // namespace shale
