// ChatTemplate: turns conversations into text with the chat template of a Hugging Face folder. Also says which tokens
// end a document, a text of a model, and a turn of a conversation.
//
// Templates are written in Jinja2. Supports the statements, filters, tests and methods that the templates of Llama,
// Mistral, Qwen, Gemma and Falcon use for conversations and tools (template_parser.h, template_operations.h). Refuses
// others by name: statements when it reads the template, functions when a conversation reaches them. The date
// (strftime_now) is a setting, so a conversation always becomes the same text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/chat/conversation.h"
#include "engine/text/chat/template_parser.h"
#include "engine/text/chat/template_value.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace shale {

// A conversation as text.
struct ChatText {
  std::string text;
  // What the assistant says: begin, end, begin, end, ... as ascending offsets in `text`. Each part includes what the
  // template writes after the message, unless the template marks the parts itself.
  std::vector<size_t> turns;
  // Whether the template marks what the assistant says ({% generation %}). A token then counts if any of its bytes lies
  // in a turn, as in transformers.
  bool marked = false;
  // The parts of the text that come from the conversation: begin, end, ... as ascending offsets.
  std::vector<size_t> said;
  // What the template leaves out first of what the conversation says; "" if it writes everything.
  std::string left_out;
};

// Immutable. Safe for concurrent use by multiple threads.
class ChatTemplate {
 public:
  // Reads chat_template.jinja and additional_chat_templates of a folder, or else `chat_template` in its
  // tokenizer_config.json, a string or a list of named templates. The special tokens that a template may read are those
  // of the folder's tokenizer (ReadSpecialTokens). `date` is the day that strftime_now writes, "2026-11-28"; if it is
  // empty, a conversation that asks for it is refused. Returns NotFound if there is no template, and InvalidArgument
  // with file and line if it is not supported.
  static absl::StatusOr<ChatTemplate> Load(const std::string& folder, const std::string& date = "");
  // Makes a template of its source, with special tokens by name, such as "bos_token".
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source,
                                            std::vector<std::pair<std::string, std::string>> special_tokens,
                                            const std::string& date = "");

  // Returns a checksum of the templates, of the special tokens that they may read, and of the date if they write it.
  uint32_t digest() const { return digest_; }

  // Returns what apply_chat_template of transformers returns with tokenize=False. Uses the template "tool_use" for a
  // conversation with tools, if there is one. Returns InvalidArgument if the template refuses the conversation or uses
  // something that is not supported.
  absl::StatusOr<std::string> Render(const Conversation& conversation, bool add_generation_prompt) const;
  // Returns the text of a conversation to train on, without a generation prompt, and without turns. Returns the errors
  // of Render.
  absl::StatusOr<ChatText> RenderAll(const Conversation& conversation) const;
  // Returns the same, and where the assistant speaks in messages that count.
  //
  // If the template marks that ({% generation %}), the turns are the marked parts. Otherwise a turn begins after the
  // generation prompt of the messages before it, or where the text goes on in another way than this prompt: prompts of
  // models that think end with <think>, which answers without thoughts lack. It ends where the text of a conversation
  // would that ends with it. Returns the errors of RenderAll, and InvalidArgument where no such place can be told.
  absl::StatusOr<ChatText> RenderWithTurns(const Conversation& conversation) const;

 private:
  using Statements = std::shared_ptr<const std::vector<TemplateStatement>>;

  // Adds a named template. Returns InvalidArgument with the line.
  absl::Status Add(const std::string& name, absl::string_view source);
  void SetTokens(const std::vector<std::pair<std::string, std::string>>& special_tokens);

  // Returns the template for conversations with or without tools.
  absl::StatusOr<Statements> For(const NumberedConversation& conversation) const;
  // Renders the first `messages` messages.
  absl::StatusOr<RenderedTemplate> Render(const NumberedConversation& conversation, size_t messages,
                                          bool add_generation_prompt) const;
  // Finds the turns in the text of a template that does not mark them.
  absl::StatusOr<std::vector<size_t>> FindTurns(const Conversation& conversation, const NumberedConversation& numbered,
                                                const TemplateText& text) const;

  Statements default_, tool_use_;  // Null if there is none.
  std::string names_;              // Of all templates, for messages.
  TemplateValue special_tokens_;   // A dict from names to texts.
  std::string date_;
  uint32_t digest_ = 0;
};

// Returns the token that ends a document: the eos_token of the tokenizer, which was read from `folder`. If the
// tokenizer has none, returns the `eos_token_id` of generation_config.json, or else of config.json, or the first of
// them: what ends a text of the model. Returns -1 if nothing names one. Returns InvalidArgument for a file that cannot
// be understood and for a token that the tokenizer does not have.
absl::StatusOr<int32_t> DocumentEnd(const Tokenizer& tokenizer, const std::string& folder);

// Returns the tokens at which generation ends: `eos_token_id` of generation_config.json in a Hugging Face folder, or
// else of its config.json, and the eos_token of the tokenizer. Returns InvalidArgument for a file that cannot be
// understood.
absl::StatusOr<std::vector<int32_t>> EndTokens(const std::string& folder, const Tokenizer& tokenizer);

// What a template writes around what the assistant says.
struct ChatTurn {
  std::string before;      // Behind the generation prompt: often a space, which answers begin with too.
  std::string end;         // Without white space at its end. Empty: nothing ends a turn.
  int32_t end_token = -1;  // The token that `end` is; -1 if it is none.
};

// Returns that of a template. Returns InvalidArgument if the template cannot write a conversation.
absl::StatusOr<ChatTurn> FindTurn(const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace shale
