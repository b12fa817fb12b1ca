// Shows how text becomes tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/files/data/documents.h"
#include "engine/text/documents/prepared_text.h"

namespace shale {

// Returns "12 files: a, b, c, d, e and 7 more".
std::string NamesOfFiles(const std::vector<std::string>& names, absl::string_view what);

// Prints, a line each, what a reader of rows should know: rows that were skipped, bytes that were replaced, what chat
// templates leave out, rows that spell special tokens, and members that nothing reads.
void ShowRows(const TokenizeTotals& totals, const std::function<void(absl::string_view)>& print);

// Prints how many of the documents of `path` the sequences hold, and, a line each, what became of those that are longer
// than a sequence, and of those in which nothing counts, with the settings that decide it.
void ShowDocuments(const std::string& path, const DocumentsReport& report,
                   const std::function<void(absl::string_view)>& print);

// Returns what shows how text becomes tokens: a counter on a terminal, and lines, by `print`, when it is done.
TextProgress ShowText(std::function<void(absl::string_view)> print);

}  // namespace shale
