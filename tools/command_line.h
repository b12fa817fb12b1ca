// CommandLine: parses the command lines of the tools, prints --help, and refuses everything that it does not know.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Exit codes of every tool.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;  // The command line or the job is wrong; nothing was started.

// Parses one command line. Add all flags first, then call Parse() or Done(). Each flag sets a variable of the caller,
// which holds the default before and must outlive the parser. Users write `--name=value` or `--name value`, and
// `--name` or `--no-name` for a switch. '-' and '_' in names are the same.
//
//   CommandLine line("train", "Trains the model of a job.");
//   line.Text("job", "FILE", "The job spec.", &job).Required();
//   line.Switch("overwrite", "Replaces an earlier run.", &overwrite);
//   if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
class CommandLine {
 public:
  CommandLine(std::string program, std::string summary) : program_(std::move(program)), summary_(std::move(summary)) {}

  // Adds a flag with a value that is not empty, unless `value_name` is TEXT.
  CommandLine& Text(std::string name, std::string value_name, std::string help, std::string* value);
  // Adds a flag that may also be given without a value, as --name, which sets `*value` to `alone`. A value must follow
  // after `=`; the next argument is never taken as the value.
  CommandLine& OptionalText(std::string name, std::string value_name, std::string help, std::string alone,
                            std::string* value);
  // May be given several times. Each occurrence appends a value.
  CommandLine& List(std::string name, std::string value_name, std::string help, std::vector<std::string>* values);
  CommandLine& Integer(std::string name, std::string help, int64_t minimum, int64_t maximum, int64_t* value);
  CommandLine& Number(std::string name, std::string help, double minimum, double maximum, double* value);
  CommandLine& Switch(std::string name, std::string help, bool* value);
  // Makes the flag that was added last required: Parse() fails without it.
  CommandLine& Required();
  // Sets a text to print at the end of --help.
  CommandLine& Footer(std::string footer);

  // Lets --help=TOPIC explain something else than the flags. `explain` returns the text, or says what is wrong with the
  // topic. `help` is about --help=TOPIC.
  CommandLine& Topics(std::string help, std::function<absl::StatusOr<std::string>(absl::string_view)> explain);

  // Parses the arguments and sets the flags' variables. Returns InvalidArgument with one line for each error: an
  // unknown flag (with the nearest name), a value of the wrong type or out of range, a missing required flag, a word
  // that belongs to no flag. With --help or -h it returns OK in spite of errors, but not of a wrong topic.
  absl::Status Parse(const std::vector<std::string>& arguments);
  bool help_wanted() const { return help_wanted_; }
  // Returns the text of --help, or of --help=TOPIC.
  std::string HelpText() const;

  // Call this first in main(). Changes to the folder that the tool was called from, which is not the working directory
  // under `bazel run`. Then parses, and prints help or errors. Returns whether the tool should exit now with
  // `*exit_code`.
  bool Done(int argc, char** argv, int* exit_code);

 private:
  struct Flag {
    std::string name;
    std::string value_name;                           // Empty for a switch.
    std::optional<std::string> alone = std::nullopt;  // The value that --name alone sets, if it need not have one.
    std::string help;
    std::string default_text;
    bool required = false;
    bool seen = false;
    std::function<std::string(absl::string_view)> set;  // Returns the error, or an empty string.
  };
  CommandLine& Add(Flag flag);
  Flag* Find(absl::string_view name);
  std::string Suggest(absl::string_view name) const;
  void ParseFlag(const std::vector<std::string>& arguments, size_t& i, std::vector<std::string>& errors);

  const std::string program_, summary_;
  std::string footer_;
  std::vector<Flag> flags_;
  bool help_wanted_ = false;
  std::string topics_help_;
  std::function<absl::StatusOr<std::string>(absl::string_view)> explain_;
  std::string topic_;
  std::string explanation_;  // Of the topic, if one was given.
};

}  // namespace shale
