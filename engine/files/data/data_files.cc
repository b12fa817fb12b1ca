#include "engine/files/data/data_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/files/data/content.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxListBytes = int64_t{1} << 26;
constexpr int64_t kMaxCardBytes = int64_t{1} << 20;  // Of the head of a README.md.

bool IsList(absl::string_view path) { return absl::EndsWithIgnoreCase(path, ".list"); }

bool HasControls(absl::string_view name) {
  return std::any_of(name.begin(), name.end(), [](char c) { return absl::ascii_iscntrl(static_cast<uint8_t>(c)); });
}

// Returns whether a file of a folder describes the data, as files beside the data of the Hugging Face hub do.
bool DescribesData(absl::string_view name) {
  constexpr absl::string_view kWhole[] = {"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json",
                                          "config.json"};
  constexpr absl::string_view kStems[] = {"readme", "license", "licence", "copying", "notice", "citation"};
  constexpr absl::string_view kEndings[] = {"", "md", "txt", "rst", "cff", "bib", "html"};
  const std::string lower = absl::AsciiStrToLower(name);
  if (std::find(std::begin(kWhole), std::end(kWhole), lower) != std::end(kWhole)) return true;
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(lower, absl::MaxSplits('.', 1));
  const absl::string_view stem = parts.first.substr(0, parts.first.find_first_of("-_"));
  const bool of_language = absl::StartsWith(stem, "readme") || absl::StartsWith(stem, "licen");
  return std::find(std::begin(kStems), std::end(kStems), of_language ? stem : parts.first) != std::end(kStems) &&
         std::find(std::begin(kEndings), std::end(kEndings), parts.second) != std::end(kEndings);
}

// Returns whether a README.md says, at its head, which files are which data.
absl::StatusOr<bool> HasConfigs(const std::string& card) {
  SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(card));
  std::string text(std::min(file.size(), kMaxCardBytes), '\0');
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, text.data(), std::ssize(text)));
  bool first = true;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    if (first ? line != "---" : line == "---") return false;
    if (absl::StartsWith(line, "configs:")) return true;
    first = false;
  }
  return false;
}

// A file of a folder.
struct Entry {
  std::string name;  // Relative to the folder.
  DataFile file;
};

// Returns the first names of some entries, for a message.
std::string FirstNames(const std::vector<const Entry*>& entries) {
  constexpr size_t kNamed = 3;
  const size_t named = std::min(kNamed, entries.size());
  std::string names = absl::StrJoin(entries.begin(), entries.begin() + named, ", ",
                                    [](std::string* out, const Entry* entry) { absl::StrAppend(out, entry->name); });
  if (named < entries.size()) absl::StrAppend(&names, " and ", entries.size() - named, " more");
  return names;
}

// Collects files.
class Lister {
 public:
  explicit Lister(const DataFilesOptions& options) : options_(options) {}

  absl::Status Add(const std::string& path, bool in_list);
  DataFiles& found() { return found_; }

 private:
  absl::Status AddFile(const std::string& path, bool in_list);
  absl::Status AddList(const std::string& path);
  absl::Status AddFolder(const std::string& folder);
  // Adds the names of the regular files under `inside`, a folder in `folder`.
  absl::Status Collect(const std::string& folder, const std::string& inside, std::vector<std::string>* names);
  // Recognizes a file, and appends it to `*entries` unless it cannot be data.
  absl::Status Examine(const std::string& folder, const std::string& name, const std::set<std::string>& names,
                       std::vector<Entry>* entries);
  // Keeps the entries of the split to take.
  absl::Status TakeSplit(const std::string& folder, std::vector<Entry>* entries);
  // Keeps the entries of the form that is asked for. Refuses several forms, if none is.
  absl::Status TakeForm(const std::string& folder, std::vector<Entry>* entries);
  void Skip(absl::string_view name, absl::string_view why) {
    found_.skipped.push_back(absl::StrCat(name, " (", why, ")"));
  }
  // Keeps the entries for which `why` returns nothing. Skips the others with the reason that it returns.
  template <class Why>
  void Keep(std::vector<Entry>* entries, const Why& why) {
    std::erase_if(*entries, [&](const Entry& entry) {
      const std::string reason = why(entry);
      if (!reason.empty()) Skip(entry.name, reason);
      return !reason.empty();
    });
  }

  const DataFilesOptions options_;
  DataFiles found_;
  std::map<std::pair<uint64_t, uint64_t>, std::string> taken_;  // Names in folders, by device and inode.
};

absl::Status Lister::Collect(const std::string& folder, const std::string& inside, std::vector<std::string>* names) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                         ListFolder(inside.empty() ? folder : JoinPath(folder, inside)));
  for (const std::string& name : found) {
    if (name[0] == '.') continue;
    // Messages show names, and a terminal obeys such characters.
    if (HasControls(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": the name ", Quoted(name), " has control characters; rename the file"));
    }
    const std::string relative = JoinPath(inside, name), path = JoinPath(folder, relative);
    struct stat info, of_link;
    if (stat(path.c_str(), &info) != 0 || lstat(path.c_str(), &of_link) != 0) return FileError(errno, "open", path);
    if (!S_ISDIR(info.st_mode)) {
      if (S_ISREG(info.st_mode)) {
        names->push_back(relative);
      } else {
        Skip(relative, "not a regular file");
      }
    } else if (S_ISLNK(of_link.st_mode)) {
      Skip(relative, "a link to a folder");
    } else if (!absl::StartsWith(name, "__")) {
      SHALE_RETURN_IF_ERROR(Collect(folder, relative, names));
    }
  }
  return absl::OkStatus();
}

absl::Status Lister::Examine(const std::string& folder, const std::string& name, const std::set<std::string>& names,
                             std::vector<Entry>* entries) {
  const absl::string_view last = absl::string_view(name).substr(name.rfind('/') + 1);
  if (DescribesData(last)) {
    Skip(name, "describes the data");
    return absl::OkStatus();
  }
  if (IsList(name)) {
    Skip(name, "a list of files");
    return absl::OkStatus();
  }
  const std::string path = JoinPath(folder, name);
  SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  const auto [first, is_new] = taken_.try_emplace({file.identity().device, file.identity().inode}, name);
  if (!is_new) {
    Skip(name, absl::StrCat("the same as ", first->second));
    return absl::OkStatus();
  }
  if (file.size() == 0) {
    Skip(name, "empty");
    return absl::OkStatus();
  }
  if (absl::EndsWith(name, ".bin")) {
    const std::string index = absl::StrCat(name.substr(0, name.size() - 4), ".idx");
    if (names.contains(index)) {
      Skip(name, absl::StrCat("the tokens of ", index));
      return absl::OkStatus();
    }
  }
  SHALE_ASSIGN_OR_RETURN(Content content, RecognizeContent(file));
  if (content.kind == ContentKind::kBinary) {
    Skip(name, content.name);
    return absl::OkStatus();
  }
  const bool rows = options_.format == DataFormat::kJsonLines ||
                    (options_.format == DataFormat::kByContent && content.kind == ContentKind::kRows);
  entries->push_back({name, {.path = path, .content = std::move(content), .rows = rows}});
  return absl::OkStatus();
}

absl::Status Lister::TakeSplit(const std::string& folder, std::vector<Entry>* entries) {
  if (options_.splits == Splits::kTogether) return absl::OkStatus();
  constexpr absl::string_view kAll = "; name the files, in a *.list, or set data.splits=TOGETHER to take all";
  std::array<std::vector<const Entry*>, 4> of_split;
  for (const Entry& entry : *entries) {
    const SplitName split = SplitNameOf(entry.name);
    if (split == SplitName::kSeveral) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": the name ", entry.name, " says that it is of the split train and of another", kAll));
    }
    of_split[static_cast<size_t>(split)].push_back(&entry);
  }
  const auto files = [&](SplitName split) -> const std::vector<const Entry*>& {
    return of_split[static_cast<size_t>(split)];
  };
  const bool validation = !files(SplitName::kValidation).empty(), test = !files(SplitName::kTest).empty();
  SplitName take = SplitName::kTrain;
  if (options_.for_evaluation && validation && test) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " has the splits validation (", FirstNames(files(SplitName::kValidation)), ") and test (",
                     FirstNames(files(SplitName::kTest)), ") by the names of its files; name those to evaluate on"));
  }
  if (options_.for_evaluation && (validation || test)) take = validation ? SplitName::kValidation : SplitName::kTest;
  if (files(take).empty()) {
    if (!validation && !test) return absl::OkStatus();
    const SplitName other = test ? SplitName::kTest : SplitName::kValidation;
    return absl::InvalidArgumentError(absl::StrCat(folder, ": ", FirstNames(files(other)), " is of the split ",
                                                   ToString(other), " by its name, and no file of the split train",
                                                   kAll));
  }
  Keep(entries, [&](const Entry& entry) -> std::string {
    const SplitName split = SplitNameOf(entry.name);
    if (split == take) return "";
    return split == SplitName::kNone ? absl::StrCat("not named as of the split ", ToString(take))
                                     : absl::StrCat("of the split ", ToString(split));
  });
  return absl::OkStatus();
}

absl::Status Lister::TakeForm(const std::string& folder, std::vector<Entry>* entries) {
  const DataFormat format = options_.format;
  if (format == DataFormat::kJsonLines) {
    Keep(entries, [](const Entry& entry) -> std::string {
      const Content& content = entry.file.content;
      return content.kind == ContentKind::kRows ? "" : absl::StrCat(content.name, ", not rows of JSON");
    });
    return absl::OkStatus();
  }
  if (HoldsTokens(format)) {
    const DataFormatEntry& wanted = EntryOf(format);
    Keep(entries, [&](const Entry& entry) -> std::string {
      const Content& content = entry.file.content;
      if (content.format == &wanted) return "";
      return absl::StrCat(content.name, ", not ", wanted.article, " ", wanted.file);
    });
    return absl::OkStatus();
  }
  for (const Entry& entry : *entries) {
    const Content& content = entry.file.content;
    const bool as_text = format == DataFormat::kText && content.is_text;
    if (content.kind == ContentKind::kUnread && !as_text) return RefuseContent(entry.file.path, content);
  }
  if (format == DataFormat::kText) {
    Keep(entries, [](const Entry& entry) -> std::string {
      const Content& content = entry.file.content;
      return content.is_text ? "" : absl::StrCat(content.name, ", not text");
    });
    return absl::OkStatus();
  }
  std::map<ContentKind, std::vector<const Entry*>> kinds;
  for (const Entry& entry : *entries) kinds[entry.file.content.kind].push_back(&entry);
  if (kinds.size() <= 1) return absl::OkStatus();
  const auto shown = [](std::string* out, const auto& kind) {
    absl::StrAppend(out, kind.second[0]->file.content.name, " (", FirstNames(kind.second), ")");
  };
  return absl::InvalidArgumentError(
      absl::StrCat(folder, " mixes ", absl::StrJoin(kinds, " and ", shown),
                   "; set data.format (JSONL takes the rows of JSON alone, TEXT takes every text as it stands, each "
                   "other format takes its token files), or name the files in a *.list"));
}

absl::Status Lister::AddFolder(const std::string& folder) {
  std::vector<std::string> names;
  SHALE_RETURN_IF_ERROR(Collect(folder, "", &names));
  const std::set<std::string> sorted(names.begin(), names.end());
  std::vector<Entry> entries;
  for (const std::string& name : sorted) SHALE_RETURN_IF_ERROR(Examine(folder, name, sorted, &entries));
  if (sorted.contains("README.md") && options_.splits == Splits::kByName) {
    SHALE_ASSIGN_OR_RETURN(const bool configs, HasConfigs(JoinPath(folder, "README.md")));
    if (configs) {
      return absl::InvalidArgumentError(
          absl::StrCat(JoinPath(folder, "README.md"),
                       " says which files are which data (configs), and that is not read; name the files, one or in a "
                       "*.list, or set data.splits=TOGETHER to take all"));
    }
  }
  SHALE_RETURN_IF_ERROR(TakeSplit(folder, &entries));
  SHALE_RETURN_IF_ERROR(TakeForm(folder, &entries));
  for (Entry& entry : entries) found_.files.push_back(std::move(entry.file));
  return absl::OkStatus();
}

absl::Status Lister::AddFile(const std::string& path, bool in_list) {
  SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() == 0) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(Content content, RecognizeContent(file));
  const bool as_text =
      content.is_text && (options_.format == DataFormat::kText || options_.format == DataFormat::kJsonLines);
  if (content.kind == ContentKind::kUnread && !as_text) return RefuseContent(path, content);
  if (content.kind == ContentKind::kBinary && options_.format == DataFormat::kByContent) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is ", content.name, ", not text",
        content.name == "binary" ? ": one of its first bytes is zero; data.format=TEXT reads it as it stands" : ""));
  }
  if (in_list && content.kind == ContentKind::kTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", content.name, "; a list can only name text for a tokenizer"));
  }
  const bool rows = options_.format == DataFormat::kJsonLines ||
                    (options_.format == DataFormat::kByContent && content.kind == ContentKind::kRows);
  found_.files.push_back({.path = path, .content = std::move(content), .rows = rows});
  return absl::OkStatus();
}

absl::Status Lister::AddList(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxListBytes));
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (line.empty()) continue;
    if (HasControls(line)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": the name ", Quoted(line), " has control characters; rename the file"));
    }
    const absl::Status status = Add(JoinPath(folder, line), /*in_list=*/true);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ":", number, ": ", status.message()));
  }
  return absl::OkStatus();
}

absl::Status Lister::Add(const std::string& path, bool in_list) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return AddFolder(path);
  if (!IsList(path) || !options_.lists) return AddFile(path, in_list);
  if (!in_list) return AddList(path);
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is a list of files itself; a list names files and folders; put its lines here"));
}

}  // namespace

absl::StatusOr<DataFiles> ListDataFiles(const std::string& path, const DataFilesOptions& options) {
  Lister lister(options);
  SHALE_RETURN_IF_ERROR(lister.Add(path, /*in_list=*/false));
  DataFiles& found = lister.found();
  if (!found.files.empty()) return std::move(found);
  constexpr size_t kNamed = 5;
  const size_t named = std::min(kNamed, found.skipped.size());
  const bool tokens = HoldsTokens(options.format);
  std::string message =
      absl::StrCat(path, " has no ", tokens ? EntryOf(options.format).file : "data", named > 0 ? ": skipped " : "",
                   absl::StrJoin(found.skipped.begin(), found.skipped.begin() + named, ", "));
  if (named < found.skipped.size()) absl::StrAppend(&message, " and ", found.skipped.size() - named, " more");
  return absl::InvalidArgumentError(message);
}

}  // namespace shale
