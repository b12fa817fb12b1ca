// Answers: what a model says to prompts, compared with what it should say.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/generate/next_tokens.h"
#include "engine/tokenize/chat_template.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

// A completion of a file, and what the model says to its prompt. In a conversation, the prompt is all before an answer
// of the assistant as the chat template writes it, and the completion is that answer.
struct Answer {
  std::string prompt, completion;
  std::string answer;
  bool matches = false;
  bool unanswered = false;  // The prompt does not fit the context, or has no token.
};

struct MatchOptions {
  int64_t tokens = 256;  // The most tokens of an answer.
  // Whether an answer that can no longer match is generated to its end all the same.
  bool whole_answers = false;
  // Whether of a conversation the last answer of the assistant counts alone. Otherwise all do.
  bool last_turns = false;
};

struct MatchReport {
  int64_t completions = 0;
  int64_t matches = 0;
  int64_t unanswered = 0;  // Completions whose prompt does not fit the context, or has no token. They do not match.
};

// What makes text of tokens, and tokens of text.
struct MatchText {
  const Tokenizer& tokenizer;
  const ChatTemplate* chat = nullptr;  // Null: messages are refused.
  std::vector<int32_t> end_tokens;     // End a text.
};

// Continues the prompts of the JSON Lines at `path`, which `data` says how to read, with the most likely tokens, as
// many prompts at once as `sequences` has sequences. See Evaluator::Match.
absl::StatusOr<MatchReport> MatchCompletions(const std::string& path, const DataConfig& data, const MatchText& text,
                                             Sequences& sequences, const MatchOptions& options,
                                             const std::function<absl::Status(const Answer&)>& take);

// Returns whether the data at `path` has a row with a prompt and a completion, or one with messages of the assistant.
// `all_rows`: every file is JSON Lines.
absl::StatusOr<bool> HasCompletions(const std::string& path, bool all_rows);

}  // namespace shale
