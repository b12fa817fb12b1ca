// generate: continues a prompt with the model of a run.

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/api/backend.h"
#include "engine/api/generator.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/run/generate/generated_text.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/check.h"
#include "tools/chat.h"
#include "tools/checkpoint_flag.h"
#include "tools/command_line.h"
#include "tools/device_flag.h"

namespace shale {
namespace {

struct Flags {
  std::string run;
  std::string checkpoint = "newest";
  std::string base;
  std::string prompt;
  std::string prompt_tokens;
  int64_t tokens = 200;
  int64_t context = 0;
  int64_t samples = 1;
  SamplingOptions sampling;
  int64_t seed = 1;
  std::vector<std::string> stop;
  bool show_special = false;
  bool chat = false;
  std::string system;
  std::string device;
};

absl::StatusOr<std::vector<int32_t>> ParseTokens(const std::string& text) {
  std::vector<int32_t> tokens;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(part, &token)) {
      return absl::InvalidArgumentError(absl::StrCat("--prompt_tokens: found \"", part,
                                                     "\"; wanted numbers with commas between, as in 15496,11,995"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

// Returns the tokenizer of a run, if there is one and tokens are not bytes.
absl::StatusOr<std::optional<Tokenizer>> TokenizerOf(const Generator& generator, const std::string& run) {
  const std::string folder = RunHfPath(run);
  if (generator.is_text() || access(JoinPath(folder, "tokenizer.json").c_str(), F_OK) != 0) return std::nullopt;
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(folder);
  if (tokenizer.ok()) return std::optional<Tokenizer>(*std::move(tokenizer));
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(tokenizer.status().message(), "; give tokens instead, --prompt_tokens=1,2,3"));
}

absl::StatusOr<std::vector<int32_t>> Prompt(const Generator& generator, const std::optional<Tokenizer>& tokenizer,
                                            const Flags& flags) {
  if (!flags.prompt_tokens.empty() && !flags.prompt.empty()) {
    return absl::InvalidArgumentError("--prompt and --prompt_tokens exclude each other");
  }
  if (!flags.prompt_tokens.empty()) return ParseTokens(flags.prompt_tokens);
  if (tokenizer) return PromptTokens(*tokenizer, flags.prompt);
  absl::StatusOr<std::vector<int32_t>> tokens = generator.TextPrompt(flags.prompt);
  if (tokens.ok() || generator.is_text()) return tokens;
  return absl::InvalidArgumentError(absl::StrCat(tokens.status().message(), ", --prompt_tokens=1,2,3"));
}

void Show(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

GenerateOptions OptionsOf(const Flags& flags, std::vector<int32_t> stop_tokens) {
  GenerateOptions options = {.count = flags.tokens, .sampling = flags.sampling, .stop_tokens = std::move(stop_tokens)};
  options.sampling.seed = static_cast<uint64_t>(flags.seed);
  return options;
}

// Shows the samples that follow a prompt: one as it comes, several one after another when all have ended.
absl::Status ShowSamples(Generator& generator, const Tokenizer* tokenizer, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& stop_tokens, const Flags& flags) {
  std::vector<GeneratedText> texts;
  std::vector<std::string> shown(flags.samples);
  for (int64_t i = 0; i < flags.samples; ++i) {
    texts.emplace_back(tokenizer, generator.is_text(), /*skip_special=*/!flags.show_special, flags.stop);
  }
  const bool at_once = flags.samples == 1;
  const auto show = [&](int64_t i, const std::string& text) { at_once ? Show(text) : (void)(shown[i] += text); };
  for (int64_t i = 0; i < flags.samples; ++i) {
    if (generator.is_text()) show(i, flags.prompt);
    // The text of tokens may depend on those before, so a tokenizer decodes the prompt too.
    if (tokenizer == nullptr) continue;
    const size_t prefix = tokenizer->prefix().size();
    for (size_t t = 0; t < prompt.size(); ++t) show(i, texts[i].PushPrompt(prompt[t], /*written=*/t >= prefix));
  }
  const absl::Status status = generator.GenerateAll(std::vector<std::vector<int32_t>>(flags.samples, prompt),
                                                    OptionsOf(flags, stop_tokens), [&](int64_t i, int32_t token) {
                                                      show(i, texts[i].Push(token));
                                                      return !texts[i].stopped();
                                                    });
  for (int64_t i = 0; i < flags.samples; ++i) {
    show(i, texts[i].Finish() + "\n");
    if (!at_once) Show(absl::StrCat("--- sample ", i + 1, "\n", shown[i]));
  }
  return status;
}

absl::Status ChatOnTerminal(Generator& generator, const std::optional<Tokenizer>& tokenizer,
                            const std::vector<int32_t>& stop_tokens, const Flags& flags) {
  if (!tokenizer) {
    return absl::InvalidArgumentError(
        "--chat needs a tokenizer with a chat template in the run's folder hf, which is there if the run was tuned "
        "from "
        "a Hugging Face folder; without --chat, --prompt is continued as it stands");
  }
  SHALE_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Load(RunHfPath(flags.run), generator.job().data.date));
  const bool terminal = isatty(STDIN_FILENO) != 0;
  ChatOptions options{.system = flags.system,
                      .positions = generator.positions(),
                      .stop_tokens = stop_tokens,
                      .stop_strings = flags.stop};
  options.generate = [&](const std::vector<int32_t>& conversation, const std::function<bool(int32_t)>& emit) {
    GenerateOptions answer = OptionsOf(flags, {});
    answer.goes_on = true;
    return generator.GenerateAll({conversation}, answer, [&](int64_t, int32_t token) { return emit(token); });
  };
  options.before_message = [&] { Show(terminal ? "> " : ""); };
  options.show = Show;
  return Chat(*tokenizer, chat, options, std::cin);
}

absl::Status Generate(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(const BackendFactory backends, BackendsOn(flags.device));
  SHALE_ASSIGN_OR_RETURN(const WhichCheckpoint which, WhichCheckpointOf(flags.checkpoint));
  if (flags.chat && (flags.samples > 1 || !flags.prompt.empty() || !flags.prompt_tokens.empty())) {
    return absl::InvalidArgumentError(
        "--chat reads messages from its input: leave out --prompt, --prompt_tokens and "
        "--samples");
  }
  SHALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Generator> generator,
      Generator::FromRun(flags.run, backends, std::nullopt, {.sequences = flags.samples, .positions = flags.context},
                         which, flags.base));
  for (const std::string& reason : generator->passed_over()) {
    std::fprintf(stderr, "generate: skipped: %s\n", reason.c_str());
  }
  // With tokens as the prompt, tokens are printed, and no tokenizer is needed.
  std::optional<Tokenizer> tokenizer;
  std::vector<int32_t> stop_tokens;
  if (flags.prompt_tokens.empty()) {
    SHALE_ASSIGN_OR_RETURN(tokenizer, TokenizerOf(*generator, flags.run));
    if (tokenizer) {
      SHALE_ASSIGN_OR_RETURN(stop_tokens, EndTokens(RunHfPath(flags.run), *tokenizer));
    }
  }
  if (flags.chat) return ChatOnTerminal(*generator, tokenizer, stop_tokens, flags);
  SHALE_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, Prompt(*generator, tokenizer, flags));
  return ShowSamples(*generator, tokenizer ? &*tokenizer : nullptr, prompt, stop_tokens, flags);
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("generate", "Continues a prompt with the model of a run, and prints text as it comes.");
  line.Text("run", "FOLDER", "The run folder of the model.", &flags.run).Required();
  line.Text("checkpoint", "newest|best", shale::kCheckpointHelp, &flags.checkpoint);
  line.Text("base", "FOLDER", shale::kBaseHelp, &flags.base);
  line.Text("prompt", "TEXT",
            "The text to continue; empty: a new line. Special tokens that are written in it are tokens.",
            &flags.prompt);
  line.Text("prompt_tokens", "N,N,...",
            "The numbers of the tokens to continue, in place of --prompt, for models that were trained on token files. "
            "generate then prints the numbers of tokens, too.",
            &flags.prompt_tokens);
  line.Integer("tokens", "How many tokens to generate; without a tokenizer, a token of text is a byte.", 1, 100'000'000,
               &flags.tokens);
  line.Integer("context",
               "How many tokens of a text the model sees; when a text grows longer, its older half is forgotten. 0: "
               "batch.sequence_length of the run.",
               0, std::numeric_limits<int32_t>::max(), &flags.context);
  line.Integer("samples", "How many texts to generate at once; each draws with the next seed.", 1, 4096,
               &flags.samples);
  line.Number("repetition_penalty", "Above 1, tokens that the text already has become less likely. 1: no penalty.", 0,
              1000, &flags.sampling.repetition_penalty);
  line.Number("temperature",
              "Divides the logits: below 1, likely tokens become likelier. 0: always takes the most likely token.", 0,
              1000, &flags.sampling.temperature);
  line.Integer("top_k", "Draws only among the k most likely tokens; 0: among all.", 0,
               std::numeric_limits<int32_t>::max(), &flags.sampling.top_k);
  line.Number("top_p", "Draws only among the fewest most likely tokens whose probabilities sum to p.", 0, 1,
              &flags.sampling.top_p);
  line.Number("min_p", "Draws only among tokens that are at least p times as likely as the most likely one.", 0, 1,
              &flags.sampling.min_p);
  line.Integer("seed", "Seed of the random draws.", 0, std::numeric_limits<int64_t>::max(), &flags.seed);
  line.List("stop", "TEXT", "Ends a text where TEXT begins in it. The tokenizer's end of text ends it too.",
            &flags.stop);
  line.Switch("show_special", "Shows special tokens that the model generates, except for the end of text.",
              &flags.show_special);
  line.Switch(
      "chat",
      "Reads messages from the input, one in a line, and answers them, with the chat template of the run's tokenizer.",
      &flags.chat);
  line.Text("system", "TEXT", "With --chat: the system message, with which the conversation begins.", &flags.system);
  line.Text("device", "CPU|CUDA", shale::kDeviceHelp, &flags.device);
  line.Footer("Exit codes: 0 generated; 1 failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Generate(flags);
  if (status.ok()) return shale::kExitOk;
  const std::string message(status.message());
  std::fprintf(stderr, "generate: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? shale::kExitUsage : shale::kExitFailed;
}
