// ChatTemplate: makes text of conversations, as the chat template of a Hugging Face folder does.
//
// A template is written in Jinja2. The statements, filters, tests and methods that the templates of Llama, Mistral,
// Qwen and Falcon use for conversations are known (template_parser.h, template_functions.h); others are refused by
// name, statements when the template is read and functions when they are reached. The date (strftime_now) is undefined,
// so that the same conversation is always the same text, and so are tools.
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
  // Other strings of the message that a template may read, such as reasoning_content.
  std::vector<std::pair<std::string, std::string>> others;
};

// A conversation as text.
struct ChatText {
  std::string text;
  // The parts that the assistant says, each with what ends it: offsets of begin and end, rising.
  std::vector<size_t> turns;
};

// Immutable. Safe for concurrent use by multiple threads.
class ChatTemplate {
 public:
  // Reads chat_template.jinja of a folder, or `chat_template` in its tokenizer_config.json, which also has the special
  // tokens that a template may read. Returns NotFound if there is no template, and InvalidArgument with file and line.
  static absl::StatusOr<ChatTemplate> Load(const std::string& folder);
  // Does the same for the text of a template and special tokens by name, such as "bos_token".
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source,
                                            std::vector<std::pair<std::string, std::string>> special_tokens);

  // Returns a checksum of the template and of the special tokens that it may read.
  uint32_t digest() const { return digest_; }

  // Returns what apply_chat_template returns with tokenize=False. Returns InvalidArgument if the template refuses the
  // conversation, or reaches what is not supported.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;
  // Does the same without a generation prompt, for a conversation to train on. Returns InvalidArgument also if the
  // template leaves out what the system says, as those of Mistral do when the last message is an answer.
  absl::StatusOr<std::string> RenderAll(const std::vector<ChatMessage>& messages) const;
  // Does the same, and finds what the assistant says: behind the generation prompt of the messages before, up to what
  // the template writes behind the message. Returns InvalidArgument if the template writes either in another way.
  absl::StatusOr<ChatText> RenderWithTurns(const std::vector<ChatMessage>& messages) const;

 private:
  std::shared_ptr<const std::vector<TemplateStatement>> statements_;
  TemplateValue special_tokens_;  // A dict.
  uint32_t digest_ = 0;
};

}  // namespace shale
