// tokenize: turns text into token files with the tokenizer of a Hugging Face folder, or trains a vocabulary.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/files/hugging_face/staged_folder.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
#include "engine/strings/printing.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/token_files.h"
#include "engine/text/documents/tokenize_documents.h"
#include "engine/text/tokenizer/bpe_trainer.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/check.h"
#include "tools/command_line.h"
#include "tools/show_text.h"

namespace shale {
namespace {

struct Flags {
  std::string tokenizer;
  std::string in;
  std::string out;
  std::string end_of_document;
  int64_t threads = 0;
  bool train = false;
  int64_t vocabulary = 0;
  int64_t min_frequency = 2;
  std::string pattern = "LLAMA3";
  std::string special_token = "<|endoftext|>";
  bool skip_bad_lines = false;
  bool replace_bad_bytes = false;
  bool allow_dropped_text = false;
  std::string date;
};

// Shows in a terminal how much of the data was read.
class Progress {
 public:
  explicit Progress(const DocumentReader& reader) : reader_(reader) {}

  double Seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  // Shows the progress, at most ten times a second.
  void Show(const TokenizeTotals& totals) {
    const double now = Seconds();
    if (!terminal_ || now < shown_ + 0.1) return;
    shown_ = now;
    std::fprintf(stderr, "\r%s of %s, %s/s of text  ", FormatBytes(reader_.bytes_read()).c_str(),
                 FormatBytes(reader_.total_bytes()).c_str(), FormatBytes(totals.bytes / now).c_str());
  }
  // Removes what was shown.
  void End() const {
    if (terminal_) std::fprintf(stderr, "\r%60s\r", "");
  }

 private:
  using Clock = std::chrono::steady_clock;

  const DocumentReader& reader_;
  const Clock::time_point begin_ = Clock::now();
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  double shown_ = 0;
};

int Threads(const Flags& flags) {
  return static_cast<int>(flags.threads > 0 ? flags.threads : std::max(1u, std::thread::hardware_concurrency()));
}

BadLines BadLinesOf(const Flags& flags) { return flags.skip_bad_lines ? BadLines::kSkip : BadLines::kRefuse; }

void PrintSkipped(const TokenizeTotals& totals, const DocumentReader& reader) {
  if (!reader.skipped().empty()) std::printf("left out %s\n", NamesOfFiles(reader.skipped(), "file").c_str());
  ShowRows(totals, [](absl::string_view line) { std::printf("%s\n", std::string(line).c_str()); });
}

DocumentReader::Options ReaderOptions(const Flags& flags, bool cut_lines) {
  return {.cut_lines = cut_lines, .bad_bytes = flags.replace_bad_bytes ? BadBytes::kReplace : BadBytes::kFail};
}

absl::StatusOr<absl::string_view> ParsePattern(const std::string& name) {
  if (name == "GPT2") return kGpt2Pattern;
  if (name == "LLAMA3") return kLlama3Pattern;
  if (name == "QWEN2") return kQwen2Pattern;
  return absl::InvalidArgumentError(absl::StrCat("--pattern: found ", Quoted(name), "; allowed: GPT2, LLAMA3, QWEN2"));
}

// Returns the folder of the tokenizer: `tokenizer` itself, or the folder that the file lies in.
std::string FolderOf(const std::string& tokenizer) {
  const std::filesystem::path path = tokenizer;
  return std::filesystem::is_directory(path) ? tokenizer : path.parent_path().string();
}

absl::Status Train(const Flags& flags) {
  if (flags.vocabulary == 0) {
    return absl::InvalidArgumentError("--train needs --vocabulary=N, the tokens to make, such as 8192");
  }
  if (!flags.tokenizer.empty()) return absl::InvalidArgumentError("--train makes a tokenizer; leave --tokenizer out");
  SHALE_ASSIGN_OR_RETURN(const absl::string_view pattern, ParsePattern(flags.pattern));
  if (flags.special_token.empty() || !std::all_of(flags.special_token.begin(), flags.special_token.end(),
                                                  [](char c) { return c > ' ' && c < 0x7F; })) {
    return absl::InvalidArgumentError(absl::StrCat("--special_token: found ", Quoted(flags.special_token),
                                                   "; wanted printable characters of ASCII without spaces"));
  }
  // A word never spans two lines, so any document can be cut at lines.
  SHALE_ASSIGN_OR_RETURN(DocumentReader reader, DocumentReader::Open(flags.in, ReaderOptions(flags, true)));
  SHALE_ASSIGN_OR_RETURN(StagedFolder folder, StagedFolder::Create(flags.out));
  Progress progress(reader);
  WordCounts words;
  const TokenizeOptions options = {.threads = Threads(flags), .bad_lines = BadLinesOf(flags)};
  const absl::StatusOr<TokenizeTotals> totals = CountWordsOfDocuments(
      reader, pattern, options, &words, [&](const TokenizeTotals& so_far) { progress.Show(so_far); });
  progress.End();
  if (!totals.ok()) return totals.status();
  const std::vector<std::string> special_tokens = {flags.special_token};
  const TrainedBpe bpe = TrainBpe(words, special_tokens, flags.vocabulary, flags.min_frequency);
  SHALE_RETURN_IF_ERROR(
      WriteFileDurably(JoinPath(folder.path(), "tokenizer.json"), TokenizerJson(bpe, special_tokens, pattern)));
  // transformers also reads the class of the tokenizer, and the token that ends a document.
  SHALE_RETURN_IF_ERROR(WriteFileDurably(JoinPath(folder.path(), "tokenizer_config.json"),
                                         absl::StrCat("{\n  \"eos_token\": ", JsonQuote(flags.special_token),
                                                      ",\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n")));
  SHALE_RETURN_IF_ERROR(folder.Commit());
  std::printf("trained %s on %s of text with %s to %s in %s\n", Plural(bpe.tokens.size(), "token").c_str(),
              FormatBytes(totals->bytes).c_str(), Plural(words.size(), "different word").c_str(), flags.out.c_str(),
              FormatDuration(progress.Seconds()).c_str());
  PrintSkipped(*totals, reader);
  if (static_cast<int64_t>(bpe.tokens.size()) < flags.vocabulary) {
    std::printf("no other pair of tokens occurs %s, so the vocabulary is smaller than asked for\n",
                Plural(flags.min_frequency, "time").c_str());
  }
  return absl::OkStatus();
}

absl::Status Tokenize(const Flags& flags) {
  if (flags.vocabulary != 0) {
    return absl::InvalidArgumentError(
        "--vocabulary goes with --train; leave it out, or give --train in place of --tokenizer");
  }
  if (flags.tokenizer.empty()) {
    return absl::InvalidArgumentError("give --tokenizer=FOLDER to make token files, or --train to make a tokenizer");
  }
  const absl::StatusOr<Tokenizer> loaded = Tokenizer::Load(flags.tokenizer);
  if (!loaded.ok()) {
    return absl::Status(loaded.status().code(), absl::StrCat("--tokenizer: ", loaded.status().message()));
  }
  const Tokenizer& tokenizer = *loaded;
  // The files cannot say which tokens count in the loss, so all of them do.
  TokenizeOptions options = {.threads = Threads(flags),
                             .loss_on = LossOn::kAll,
                             .bad_lines = BadLinesOf(flags),
                             .allow_dropped_text = flags.allow_dropped_text};
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Load(FolderOf(flags.tokenizer), flags.date);
  if (chat.ok()) {
    options.chat = &*chat;
  } else {
    options.no_chat = chat.status();
  }
  if (!flags.end_of_document.empty()) {
    options.end_of_document = tokenizer.Find(flags.end_of_document);
    if (options.end_of_document < 0) {
      return absl::InvalidArgumentError(absl::StrCat("--end_of_document: the tokenizer has no token ",
                                                     Quoted(flags.end_of_document),
                                                     "; name one that its tokenizer.json lists"));
    }
  }
  SHALE_ASSIGN_OR_RETURN(DocumentReader reader,
                         DocumentReader::Open(flags.in, ReaderOptions(flags, tokenizer.by_line())));
  SHALE_ASSIGN_OR_RETURN(TokenFilesWriter writer, TokenFilesWriter::Create(flags.out, tokenizer.vocabulary()));
  Progress progress(reader);
  const absl::StatusOr<TokenizeTotals> totals = TokenizeDocuments(
      tokenizer, reader, options, [&](const DocumentTokens& document) { return writer.Add(document.tokens); },
      [&](const TokenizeTotals& so_far) { progress.Show(so_far); });
  progress.End();
  if (!totals.ok()) return totals.status();
  const double seconds = progress.Seconds();
  SHALE_RETURN_IF_ERROR(writer.Commit());
  std::printf("tokenized %s, %s of text, to %s in %.3f seconds: %s, %.2f bytes each, %s/s\n",
              Plural(totals->documents, "document").c_str(), FormatBytes(totals->bytes).c_str(), flags.out.c_str(),
              seconds, Plural(totals->tokens, "token").c_str(), static_cast<double>(totals->bytes) / totals->tokens,
              FormatBytes(totals->bytes / seconds).c_str());
  std::printf("a job for these tokens needs a model with the vocabulary %ld or more\n",
              static_cast<long>(tokenizer.vocabulary()));
  PrintSkipped(*totals, reader);
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("tokenize",
                          "Turns text into token files with the tokenizer of a Hugging Face folder, or "
                          "trains a vocabulary.");
  line.Text("tokenizer", "FOLDER",
            "The tokenizer: its folder, which is read as transformers reads it, or its tokenizer.json alone.",
            &flags.tokenizer);
  line.Text("in", "DATA",
            "A file, a folder (with the folders in it), or a file *.list, whose lines name files and folders.",
            &flags.in)
      .Required();
  line.Text("out", "FOLDER", "The folder to write; it must not exist, or be empty.", &flags.out).Required();
  line.Text("end_of_document", "TOKEN", "A token to put behind each document, such as <|endoftext|>.",
            &flags.end_of_document);
  line.Integer("threads", "Number of threads; 0: one for each processor.", 0, 4096, &flags.threads);
  line.Switch("skip_bad_lines", "Skips lines of JSON Lines that are no documents, and counts them.",
              &flags.skip_bad_lines);
  line.Switch("replace_bad_bytes", "Puts U+FFFD in the place of bytes that are not UTF-8, and counts them.",
              &flags.replace_bad_bytes);
  line.Switch("allow_dropped_text", "Takes rows of which the chat template leaves out something, and counts them.",
              &flags.allow_dropped_text);
  line.Text("date", "DAY", "The day that chat templates write as today's, such as 2026-11-28.", &flags.date);
  line.Switch("train", "Trains a vocabulary on the data, and writes its tokenizer.json to the folder --out.",
              &flags.train);
  line.Integer("vocabulary", "With --train: tokens in the vocabulary, the bytes and the special token included.", 257,
               1 << 20, &flags.vocabulary);
  line.Integer("min_frequency", "With --train: merges only pairs of tokens that occur at least this often.", 1,
               std::numeric_limits<int32_t>::max(), &flags.min_frequency);
  line.Text("pattern", "GPT2|LLAMA3|QWEN2", "With --train: splits text into words as this family does.",
            &flags.pattern);
  line.Text("special_token", "TOKEN", "With --train: the special token, which gets the id 0.", &flags.special_token);
  line.Footer(
      "A text file is one document. So is each row of JSON, in a line, over several lines or in a list: an object\n"
      "with \"text\", with \"prompt\" and \"completion\", or with \"messages\", which the chat template in the\n"
      "tokenizer's folder turns into text. Files that begin as JSON, and files named *.jsonl, *.ndjson or *.json,\n"
      "hold rows. Gzip and zstd are decompressed. Of a folder with splits in its names, train is taken. Special\n"
      "tokens that stand in a text stay text, except for those that a chat template writes.\n"
      "\n"
      "The token files have the format of llm.c: name them as data.path of a job, and set the vocabulary of its\n"
      "model. They do not say which tokens count in the loss, so all do. To train on answers only, name the\n"
      "conversations themselves as data.path.\n"
      "\n"
      "Exit codes: 0 done; 1 failed; 2 wrong command line, tokenizer or data. Unless it is 0, the folder is as it "
      "was.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = flags.train ? shale::Train(flags) : shale::Tokenize(flags);
  if (status.ok()) return shale::kExitOk;
  const std::string message(status.message());
  std::fprintf(stderr, "tokenize: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status)
             ? shale::kExitUsage
             : shale::kExitFailed;
}
