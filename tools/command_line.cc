#include "tools/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/strings/messages.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

constexpr absl::string_view kFreeText = "TEXT";
constexpr size_t kHelpIndent = 30;
constexpr size_t kHelpColumns = 100;

std::string Canonical(absl::string_view name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

}  // namespace

CommandLine& CommandLine::Add(Flag flag) {
  flags_.push_back(std::move(flag));
  return *this;
}

CommandLine& CommandLine::Text(std::string name, std::string value_name, std::string help, std::string* value) {
  const std::string wanted = value_name == kFreeText ? "" : value_name;
  return Add({.name = std::move(name),
              .value_name = std::move(value_name),
              .help = std::move(help),
              .default_text = *value,
              .set = [value, wanted](absl::string_view text) {
                if (text.empty() && !wanted.empty()) return absl::StrCat("found \"\"; wanted ", wanted);
                *value = std::string(text);
                return std::string();
              }});
}

CommandLine& CommandLine::OptionalText(std::string name, std::string value_name, std::string help, std::string alone,
                                       std::string* value) {
  const std::string or_alone = absl::StrCat(", or --", name, " alone");
  Text(std::move(name), std::move(value_name), std::move(help), value);
  Flag& flag = flags_.back();
  flag.alone = std::move(alone);
  flag.set = [set = std::move(flag.set), or_alone](absl::string_view text) {
    const std::string wrong = set(text);
    return wrong.empty() ? wrong : wrong + or_alone;
  };
  return *this;
}

CommandLine& CommandLine::List(std::string name, std::string value_name, std::string help,
                               std::vector<std::string>* values) {
  return Add({.name = std::move(name),
              .value_name = std::move(value_name),
              .help = absl::StrCat(help, " May be repeated."),
              .set = [values](absl::string_view text) {
                values->emplace_back(text);
                return std::string();
              }});
}

CommandLine& CommandLine::Integer(std::string name, std::string help, int64_t minimum, int64_t maximum,
                                  int64_t* value) {
  return Add({.name = std::move(name),
              .value_name = "N",
              .help = std::move(help),
              .default_text = absl::StrCat(*value),
              .set = [=](absl::string_view text) {
                int64_t number = 0;
                if (!absl::SimpleAtoi(text, &number) || number < minimum || number > maximum) {
                  return absl::StrCat("found ", Quoted(text), "; wanted an integer in [", minimum, ", ", maximum, "]");
                }
                *value = number;
                return std::string();
              }});
}

CommandLine& CommandLine::Number(std::string name, std::string help, double minimum, double maximum, double* value) {
  return Add({.name = std::move(name),
              .value_name = "X",
              .help = std::move(help),
              .default_text = absl::StrCat(*value),
              .set = [=](absl::string_view text) {
                double number = 0;
                // The comparison is written so that it refuses NaN.
                if (!absl::SimpleAtod(text, &number) || !(number >= minimum && number <= maximum)) {
                  return absl::StrCat("found ", Quoted(text), "; wanted a number in [", minimum, ", ", maximum, "]");
                }
                *value = number;
                return std::string();
              }});
}

CommandLine& CommandLine::Switch(std::string name, std::string help, bool* value) {
  return Add({.name = std::move(name),
              .help = std::move(help),
              .default_text = *value ? "on" : "",
              .set = [value](absl::string_view text) {
                if (text != "true" && text != "false") {
                  return absl::StrCat("found ", Quoted(text), "; wanted true or false");
                }
                *value = text == "true";
                return std::string();
              }});
}

CommandLine& CommandLine::Required() {
  flags_.back().required = true;
  return *this;
}

CommandLine& CommandLine::Footer(std::string footer) {
  footer_ = std::move(footer);
  return *this;
}

CommandLine& CommandLine::Topics(std::string help,
                                 std::function<absl::StatusOr<std::string>(absl::string_view)> explain) {
  topics_help_ = std::move(help);
  explain_ = std::move(explain);
  return *this;
}

CommandLine::Flag* CommandLine::Find(absl::string_view name) {
  const std::string canonical = Canonical(name);
  const auto it = std::find_if(flags_.begin(), flags_.end(), [&](const Flag& f) { return f.name == canonical; });
  return it == flags_.end() ? nullptr : &*it;
}

std::string CommandLine::Suggest(absl::string_view name) const {
  std::vector<std::string> names = {"help"};
  for (const Flag& flag : flags_) names.push_back(flag.name);
  const std::string nearest = Nearest(Canonical(name), names);
  return nearest.empty() ? "--help lists the flags" : absl::StrCat("did you mean --", nearest, "?");
}

void CommandLine::ParseFlag(const std::vector<std::string>& arguments, size_t& i, std::vector<std::string>& errors) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(absl::string_view(arguments[i]).substr(2), absl::MaxSplits('=', 1));
  const bool has_value = arguments[i].find('=') != std::string::npos;
  const auto [name, given] = parts;
  if (name == "help") {
    help_wanted_ = true;
    topic_ = std::string(given);
    return;
  }
  Flag* flag = Find(name);
  std::string value(given);
  if (flag == nullptr && !has_value && Canonical(name).rfind("no_", 0) == 0) {
    flag = Find(name.substr(3));
    if (flag != nullptr && !flag->value_name.empty()) flag = nullptr;
    value = "false";
  } else if (flag != nullptr && !has_value) {
    if (flag->value_name.empty()) {
      value = "true";
    } else if (flag->alone) {
      value = *flag->alone;
    } else if (i + 1 < arguments.size() && arguments[i + 1].rfind("--", 0) != 0) {
      value = arguments[++i];
    } else {
      errors.push_back(absl::StrCat("--", flag->name, " needs a value: --", flag->name, "=", flag->value_name));
      return;
    }
  }
  if (flag == nullptr) {
    errors.push_back(absl::StrCat("unknown flag --", name, "; ", Suggest(name)));
    return;
  }
  flag->seen = true;
  const std::string wrong = flag->set(value);
  if (!wrong.empty()) errors.push_back(absl::StrCat("--", flag->name, ": ", wrong));
}

absl::Status CommandLine::Parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> errors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "-h") {
      help_wanted_ = true;
    } else if (argument.rfind("--", 0) == 0 && argument.size() > 2) {
      ParseFlag(arguments, i, errors);
    } else {
      errors.push_back(absl::StrCat("unexpected ", Quoted(argument), "; flags are written --name=value"));
    }
  }
  for (const Flag& flag : flags_) {
    if (flag.required && !flag.seen) {
      errors.push_back(absl::StrCat("--", flag.name, "=", flag.value_name, " is required"));
    }
  }
  if (help_wanted_ && !topic_.empty() && explain_) {
    const absl::StatusOr<std::string> text = explain_(topic_);
    if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--help=", text.status().message()));
    explanation_ = *text;
  }
  if (errors.empty() || help_wanted_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

std::string CommandLine::HelpText() const {
  if (!explanation_.empty()) return explanation_;
  std::string out = absl::StrCat(Wrap(summary_, kHelpColumns), "\n\nusage: ", program_);
  for (const Flag& flag : flags_) {
    if (flag.required) absl::StrAppend(&out, " --", flag.name, "=", flag.value_name);
  }
  absl::StrAppend(&out, " [flags]\n\n");
  const auto row = [&](const std::string& left, absl::string_view help) {
    absl::StrAppend(&out, "  ", left,
                    left.size() + 4 > kHelpIndent ? "\n" + std::string(kHelpIndent, ' ')
                                                  : std::string(kHelpIndent - 2 - left.size(), ' '));
    absl::StrAppend(&out, Wrap(help, kHelpColumns, kHelpIndent), "\n");
  };
  for (const Flag& flag : flags_) {
    std::string help = flag.help;
    if (flag.required) absl::StrAppend(&help, " Required.");
    if (!flag.default_text.empty()) absl::StrAppend(&help, " Default: ", flag.default_text, ".");
    const std::string value = flag.value_name.empty() ? "" : absl::StrCat("=", flag.value_name);
    row(absl::StrCat("--", flag.name, flag.alone ? absl::StrCat("[", value, "]") : value), help);
  }
  row("--help", "This text.");
  if (explain_) row("--help=TOPIC", topics_help_);
  if (!footer_.empty()) absl::StrAppend(&out, "\n", footer_, "\n");
  return out;
}

bool CommandLine::Done(int argc, char** argv, int* exit_code) {
  if (const char* caller = std::getenv("BUILD_WORKING_DIRECTORY"); caller != nullptr && chdir(caller) != 0) {
    std::fprintf(stderr, "%s: cannot enter %s: %s\n", program_.c_str(), caller, std::strerror(errno));
    *exit_code = kExitUsage;
    return true;
  }
  const absl::Status parsed = Parse(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  if (!parsed.ok()) {
    const std::string text(parsed.message());
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      std::fprintf(stderr, "%s: %.*s\n", program_.c_str(), static_cast<int>(line.size()), line.data());
    }
    *exit_code = kExitUsage;
    return true;
  }
  if (help_wanted_) {
    std::fputs(HelpText().c_str(), stdout);
    *exit_code = kExitOk;
    return true;
  }
  return false;
}

}  // namespace shale
