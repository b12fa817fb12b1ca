// generate: continues a prompt with the model of a run.

#include <unistd.h>

#include <cstdio>
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
#include "engine/backends/job_backend.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/generate/generator.h"
#include "engine/io/file.h"
#include "engine/text/utf8_stream.h"
#include "engine/tokenize/tokenizer.h"
#include "kernels/check.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string run;
  std::string prompt;
  std::string prompt_tokens;
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 40;
  int64_t seed = 1;
  std::string device;
};

// Returns a factory for the device that --device names, or for that of the run's job if `device` is empty.
absl::StatusOr<BackendFactory> Backends(const std::string& device) {
  if (device.empty()) return CreateBackend;
  if (device != "CPU" && device != "CUDA") {
    return absl::InvalidArgumentError(absl::StrCat("--device: found \"", device, "\"; allowed: CPU, CUDA"));
  }
  return [type = device == "CPU" ? DeviceType::kCpu : DeviceType::kCuda](const Job& job) {
    Job here = job;
    here.runtime.device = type;
    return CreateBackend(here);
  };
}

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
  const std::string path = JoinPath(RunHfPath(run), "tokenizer.json");
  if (generator.is_text() || access(path.c_str(), F_OK) != 0) return std::nullopt;
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(path);
  if (tokenizer.ok()) return std::optional<Tokenizer>(*std::move(tokenizer));
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(tokenizer.status().message(), "; give tokens instead, --prompt_tokens=1,2,3"));
}

// Returns the tokens of a text, behind what the tokenizer puts before each. An empty text stands for a newline.
absl::StatusOr<std::vector<int32_t>> TextPrompt(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens = tokenizer.prefix();
  SHALE_RETURN_IF_ERROR(Encoder(tokenizer).Encode(text.empty() && tokens.empty() ? "\n" : text, {}, &tokens));
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> Prompt(const Generator& generator, const std::optional<Tokenizer>& tokenizer,
                                            const Flags& flags) {
  if (!flags.prompt_tokens.empty() && !flags.prompt.empty()) {
    return absl::InvalidArgumentError("--prompt and --prompt_tokens exclude each other");
  }
  if (!flags.prompt_tokens.empty()) return ParseTokens(flags.prompt_tokens);
  if (tokenizer) return TextPrompt(*tokenizer, flags.prompt);
  absl::StatusOr<std::vector<int32_t>> tokens = generator.TextPrompt(flags.prompt);
  if (tokens.ok() || generator.is_text()) return tokens;
  return absl::InvalidArgumentError(absl::StrCat(tokens.status().message(), ", --prompt_tokens=1,2,3"));
}

void Show(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::Status Generate(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(const BackendFactory backends, Backends(flags.device));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Generator> generator, Generator::FromRun(flags.run, backends));
  for (const std::string& reason : generator->passed_over()) {
    std::fprintf(stderr, "generate: skipped: %s\n", reason.c_str());
  }
  // With tokens as the prompt, tokens are printed, and no tokenizer is needed.
  std::optional<Tokenizer> tokenizer;
  if (flags.prompt_tokens.empty()) {
    SHALE_ASSIGN_OR_RETURN(tokenizer, TokenizerOf(*generator, flags.run));
  }
  SHALE_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, Prompt(*generator, tokenizer, flags));
  const SamplingOptions sampling = {
      .temperature = flags.temperature, .top_k = flags.top_k, .seed = static_cast<uint64_t>(flags.seed)};
  Utf8Stream characters;
  std::optional<TokenStream> stream;
  if (tokenizer) stream.emplace(*tokenizer, /*skip_special=*/false);
  const auto text_of = [&](int32_t token) {
    if (stream) return stream->Push(token);
    return generator->is_text() ? characters.Push(static_cast<uint8_t>(token)) : absl::StrCat(token, " ");
  };
  if (generator->is_text()) Show(flags.prompt);
  // The stream decodes the prompt too, because how a token is written may depend on those before.
  if (stream) {
    for (const int32_t token : prompt) Show(stream->Push(token));
  }
  const absl::Status status = generator->Generate(prompt, flags.tokens, sampling, [&](int32_t token) {
    Show(text_of(token));
    return true;
  });
  Show((stream ? stream->Finish() : characters.Finish()) + "\n");
  return status;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("generate", "Continues a prompt with the model of a run, and prints text as it comes.");
  line.Text("run", "FOLDER", "The run folder. Its newest intact checkpoint is read.", &flags.run).Required();
  line.Text("prompt", "TEXT", "What to continue; empty: a new line.", &flags.prompt);
  line.Text("prompt_tokens", "N,N,...", "What to continue, as tokens: models of token files then print tokens.",
            &flags.prompt_tokens);
  line.Integer("tokens", "How many tokens to generate; without a tokenizer, a token of text is a byte.", 1, 100'000'000,
               &flags.tokens);
  line.Number("temperature", "Below 1 the likely becomes likelier; 0: always the most likely token.", 0, 1000,
              &flags.temperature);
  line.Integer("top_k", "Draw among the k most likely tokens only; 0: among all.", 0,
               std::numeric_limits<int32_t>::max(), &flags.top_k);
  line.Integer("seed", "Seed of the random draws.", 0, std::numeric_limits<int64_t>::max(), &flags.seed);
  line.Text("device", "CPU|CUDA", "What to run on; by default what the run was trained on.", &flags.device);
  line.Footer("Exit codes: 0 generated; 1 failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Generate(flags);
  if (status.ok()) return shale::kExitOk;
  const std::string message(status.message());
  std::fprintf(stderr, "generate: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? shale::kExitUsage : shale::kExitFailed;
}
