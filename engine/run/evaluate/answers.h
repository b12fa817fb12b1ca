// Generates answers of a model to prompts, and compares them with the completions that a file has.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/config/job.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace shale {

// A completion of a file, and what the model answers to its prompt. In a conversation, the completion is a message of
// the assistant, and the prompt is what the chat template writes of all messages before it.
struct Answer {
  std::string prompt, completion;
  std::string answer;
  bool matches = false;
  bool unanswered = false;  // The prompt does not fit the context, or has no token.
};

struct MatchOptions {
  int64_t tokens = 256;  // The most tokens of an answer.
  // Whether an answer is generated to its end even when it can no longer match.
  bool whole_answers = false;
  // Whether only the last message of the assistant in a conversation is answered and counts, instead of all of them.
  bool last_turns = false;
};

struct MatchReport {
  int64_t completions = 0;
  int64_t matches = 0;
  int64_t unanswered = 0;  // Completions whose prompt does not fit the context, or has no token. They do not match.
};

// What turns text into tokens and tokens into text.
struct MatchText {
  const Tokenizer& tokenizer;
  const ChatTemplate* chat = nullptr;  // Null: messages are refused.
  std::vector<int32_t> end_tokens;     // The tokens that end a text.
};

// Answers the prompts of the JSON Lines at `path`, as Evaluator::Match says. `data` says how the lines are read.
// Answers as many prompts at once as there are sequences in `sequences`.
absl::StatusOr<MatchReport> MatchCompletions(const std::string& path, const DataConfig& data, const MatchText& text,
                                             Sequences& sequences, const MatchOptions& options,
                                             const std::function<absl::Status(const Answer&)>& take);

// Returns whether the data at `path` has a row with a prompt and a completion, or one with messages of the assistant.
// `all_rows`: every file is JSON Lines.
absl::StatusOr<bool> HasCompletions(const std::string& path, bool all_rows);

}  // namespace shale
