#include "tools/show_text.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/numbers.h"

namespace shale {

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
    if (!report.skipped_files.empty()) {
      print(absl::StrCat("skipped ", Plural(std::ssize(report.skipped_files), "file"), " of ", report.path,
                         "; the first: ", report.skipped_files[0]));
    }
    if (totals.skipped == 0) return;
    print(absl::StrCat("skipped ", Plural(totals.skipped, "bad line"), "; the first: ", totals.first_skipped));
  };
  progress.packed = [print](const std::string& path, const DocumentsReport& report) {
    std::string line = absl::StrCat(path, ": ", Plural(report.documents, "document"), " in ",
                                    Plural(report.samples, "sequence"), ", padding ", Percent(report.padding, 1));
    if (report.long_documents > 0)
      absl::StrAppend(&line, "; ", WithCommas(report.long_documents), " longer than a sequence");
    if (report.without_counts > 0) {
      absl::StrAppend(&line, "; ", Plural(report.without_counts, "part"), " without a token that counts left out");
    }
    print(line);
  };
  return progress;
}

}  // namespace shale
