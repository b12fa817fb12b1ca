#include "tools/show_text.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/strings/messages.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Returns what became of the documents that are longer than a sequence, and by which setting.
std::string BecameOfLong(const DocumentsReport& report) {
  const std::string lost = Percent(static_cast<double>(report.lost_targets), static_cast<double>(report.targets));
  switch (report.longer) {
    case LongDocuments::kSplit:
      return absl::StrCat("split into ", Plural(report.long_parts, "part"),
                          ", none of which sees another (data.long_documents SPLIT)");
    case LongDocuments::kTruncate:
      return absl::StrCat("cut where the sequence ends, which leaves out ", lost,
                          " of all tokens (data.long_documents TRUNCATE)");
    case LongDocuments::kDrop:
      return absl::StrCat("left out, with ", lost, " of all tokens (data.long_documents DROP)");
  }
  return "";
}

}  // namespace

std::string NamesOfFiles(const std::vector<std::string>& names, absl::string_view what) {
  constexpr size_t kNamed = 5;
  const size_t named = std::min(kNamed, names.size());
  std::string text =
      absl::StrCat(Plural(std::ssize(names), what), ": ", absl::StrJoin(names.begin(), names.begin() + named, ", "));
  if (named < names.size()) absl::StrAppend(&text, " and ", names.size() - named, " more");
  return text;
}

void ShowRows(const TokenizeTotals& totals, const std::function<void(absl::string_view)>& print) {
  if (totals.skipped > 0) {
    print(absl::StrCat("skipped ", Plural(totals.skipped, "bad line"), "; the first: ", totals.first_skipped));
  }
  if (totals.replaced > 0) {
    print(absl::StrCat("U+FFFD took the place of what is not UTF-8, ", Plural(totals.replaced, "time"),
                       "; the first: ", totals.first_replaced));
  }
  if (totals.dropped > 0) {
    print(absl::StrCat("the chat template leaves out something of ", Plural(totals.dropped, "row"),
                       "; the first: ", totals.first_dropped));
  }
  if (totals.spelled > 0) {
    print(absl::StrCat("a special token is spelled in ", Plural(totals.spelled, "row"),
                       " (data.spelled_tokens says what it becomes); the first: ", totals.first_spelled));
  }
  if (!totals.ignored.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : totals.ignored) names.push_back(Quoted(name));
    print(absl::StrCat("nothing reads these members of rows: ", absl::StrJoin(names, ", ")));
  }
}

void ShowDocuments(const std::string& path, const DocumentsReport& report,
                   const std::function<void(absl::string_view)>& print) {
  const bool all = report.kept_documents == report.documents;
  print(absl::StrCat(path, ": ", all ? "" : absl::StrCat(WithCommas(report.kept_documents), " of "),
                     Plural(report.documents, "document"), " in ", Plural(report.samples, "sequence"), ", padding ",
                     Percent(report.padding, 1)));
  if (report.long_documents > 0) {
    print(absl::StrCat(path, ": ", Plural(report.long_documents, "document"),
                       report.long_documents == 1 ? " is" : " are", " longer than a sequence and ",
                       BecameOfLong(report), "; batch.sequence_length ", report.longest, " would hold the longest",
                       report.longer == LongDocuments::kDrop       ? ", TRUNCATE keeps beginnings, and SPLIT all parts"
                       : report.longer == LongDocuments::kTruncate ? ", and SPLIT keeps all parts"
                                                                   : ""));
  }
  if (report.without_counts > 0) {
    print(absl::StrCat(path, ": of documents and their parts, ", WithCommas(report.without_counts),
                       report.without_counts == 1 ? " has no token that counts in the loss and is"
                                                  : " have no token that counts in the loss and are",
                       " left out; with data.loss_on ALL every token counts"));
  }
}

TextProgress ShowText(std::function<void(absl::string_view)> print) {
  TextProgress progress;
  if (isatty(STDERR_FILENO) != 0) {
    progress.reading = [](int64_t read, int64_t total) {
      std::fprintf(stderr, "\rtokenizing: %s of %s  ", FormatBytes(read).c_str(), FormatBytes(total).c_str());
    };
  }
  progress.ready = [print](const TextReport& report) {
    if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r%60s\r", "");
    const TokenizeTotals& totals = report.totals;
    std::string line =
        absl::StrCat(report.path, ": ", Plural(totals.documents, "document"), ", ", Plural(totals.tokens, "token"));
    if (totals.counted < totals.tokens) absl::StrAppend(&line, ", ", WithCommas(totals.counted), " count in the loss");
    print(absl::StrCat(line, report.made ? "; kept in " : "; found in ", report.folder));
    if (report.files.size() != 1 || report.files[0] != report.path) {
      print(absl::StrCat("read ", NamesOfFiles(report.files, "file")));
    }
    if (!report.skipped_files.empty()) print(absl::StrCat("left out ", NamesOfFiles(report.skipped_files, "file")));
    ShowRows(totals, print);
  };
  progress.packed = [print](const std::string& path, const DocumentsReport& report) {
    ShowDocuments(path, report, print);
  };
  return progress;
}

}  // namespace shale
