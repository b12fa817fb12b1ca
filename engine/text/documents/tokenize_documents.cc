#include "engine/text/documents/tokenize_documents.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/strings/messages.h"
#include "engine/text/documents/in_order.h"
#include "engine/text/documents/text_row.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int kBatchesPerThread = 8;
constexpr int64_t kBatchBytes = int64_t{1} << 16;  // Less would cost time to hand over.

// Threads write to the ends of their vectors all the time, so no two of them may do so in one cache line.
constexpr size_t kCacheLine = 64;

// Pieces that one thread processes at a time, and their tokens.
struct alignas(kCacheLine) Batch {
  struct Document {
    size_t tokens_end = 0;  // In `tokens`.
    bool ends = true;
    bool counts_in_part = false;  // Whether `counts` says which tokens count; otherwise all do.
  };
  std::vector<DocumentPiece> pieces;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counts;  // Of each token.
  std::vector<Document> documents;
  TokenizeTotals totals;
};

// Returns an error with the file and the line of the piece.
absl::Status At(const DocumentPiece& piece, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(piece.Place(), ": ", status.message()));
}

// Returns the error of a bad row. Says why it was taken for a row if the name of its file does not say it.
absl::Status BadRow(const DocumentPiece& piece, const absl::Status& status) {
  if (!piece.guessed) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(),
                                                  "; the file is taken for rows of JSON because it begins as such: set "
                                                  "data.format=TEXT if it is text that is to be read as it stands"));
}

// Adds names of members that nothing reads, as many as a message may show.
void AddNames(const std::vector<std::string>& names, TokenizeTotals* totals) {
  constexpr size_t kMostNames = 20;
  for (const std::string& name : names) {
    const auto place = std::lower_bound(totals->ignored.begin(), totals->ignored.end(), name);
    if (place != totals->ignored.end() && *place == name) continue;
    if (totals->ignored.size() < kMostNames) totals->ignored.insert(place, name);
  }
}

// Tokenizes the pieces of batches. Used by one thread.
class alignas(kCacheLine) Worker {
 public:
  Worker(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer), options_(options), encoder_(tokenizer) {}

  absl::Status Process(Batch& batch) {
    for (DocumentPiece& piece : batch.pieces) {
      if (!piece.is_row) {
        SHALE_RETURN_IF_ERROR(At(piece, Add({.text = std::move(piece.text), .turns = {0}}, piece, batch)));
        continue;
      }
      absl::StatusOr<TextRow> row = ReadTextRow(
          piece,
          {.loss_on = options_.loss_on, .chat = options_.chat, .allow_dropped_text = options_.allow_dropped_text});
      if (row.ok()) {
        if (absl::Status added = At(piece, AddRow(*row, piece, batch)); !added.ok()) row = std::move(added);
      }
      if (row.ok()) continue;
      if (absl::IsFailedPrecondition(row.status())) {
        return absl::InvalidArgumentError(absl::StrCat(row.status().message(), ": ", options_.no_chat.message()));
      }
      if (options_.bad_lines == BadLines::kRefuse) return BadRow(piece, row.status());
      if (!absl::IsInvalidArgument(row.status())) return row.status();
      if (++batch.totals.skipped == 1) batch.totals.first_skipped = std::string(row.status().message());
    }
    batch.pieces.clear();
    batch.totals.tokens = std::ssize(batch.tokens);
    batch.totals.counted = std::count(batch.counts.begin(), batch.counts.end(), 1);
    return absl::OkStatus();
  }

 private:
  // Adds a row, or nothing of it if it is refused.
  absl::Status AddRow(const TextRow& row, const DocumentPiece& piece, Batch& batch) {
    const std::string spelled = SpelledToken(row);
    if (!spelled.empty() && options_.spelled_tokens == SpelledTokens::kRefuse) {
      return absl::InvalidArgumentError(absl::StrCat("its text spells the special token ", Quoted(spelled)));
    }
    const size_t tokens = batch.tokens.size(), counts = batch.counts.size();
    if (absl::Status added = Add(row, piece, batch); !added.ok()) {
      batch.tokens.resize(tokens);
      batch.counts.resize(counts);
      return added;
    }
    TokenizeTotals& totals = batch.totals;
    const std::string place = absl::StrCat(*piece.path, ":", piece.line, ": ");
    if (!row.left_out.empty() && ++totals.dropped == 1) totals.first_dropped = place + row.left_out;
    if (!spelled.empty() && ++totals.spelled == 1) totals.first_spelled = place + Quoted(spelled);
    AddNames(row.ignored, &totals);
    return absl::OkStatus();
  }

  // Returns a special token that what the row says spells, or "".
  std::string SpelledToken(const TextRow& row) const {
    for (const absl::string_view token : tokenizer_.SpecialTokensIn(row.text)) {
      const size_t begin = token.data() - row.text.data(), end = begin + token.size();
      const auto next = std::upper_bound(row.said.begin(), row.said.end(), begin);
      const bool inside = (next - row.said.begin()) % 2 == 1;
      if (inside && end <= *next) return std::string(token);
    }
    return "";
  }

  absl::Status Add(const TextRow& row, const DocumentPiece& piece, Batch& batch) {
    std::vector<int32_t>& tokens = batch.tokens;
    const size_t begin = tokens.size();
    const auto append = [&](const std::vector<int32_t>& more) {
      tokens.insert(tokens.end(), more.begin(), more.end());
    };
    const absl::string_view text = row.text;
    if (piece.begins && !row.is_chat) append(tokenizer_.prefix());
    const size_t text_begin = tokens.size();
    const bool special = row.is_chat || (piece.is_row && options_.spelled_tokens == SpelledTokens::kInAllRows);
    SHALE_RETURN_IF_ERROR(encoder_.Encode(text, {.special_tokens_in_text = special}, &tokens));
    const bool all_count = row.turns.size() == 1 && row.turns[0] == 0;
    batch.counts.resize(text_begin, 1);
    // Of what the tokenizer puts around a text, what comes before a prompt does not count. The end counts if the text
    // before it does.
    if (!all_count) std::fill(batch.counts.begin() + begin, batch.counts.end(), 0);
    SHALE_RETURN_IF_ERROR(AppendCounts(row, special, tokenizer_, encoder_, tokens, text_begin, &batch.counts));
    if (piece.ends && !row.is_chat) {
      append(tokenizer_.suffix());
      if (options_.end_of_document >= 0) tokens.push_back(options_.end_of_document);
    }
    batch.counts.resize(tokens.size(), row.turns.size() % 2);
    batch.documents.push_back({.tokens_end = tokens.size(), .ends = piece.ends, .counts_in_part = !all_count});
    batch.totals.documents += piece.ends ? 1 : 0;
    batch.totals.bytes += static_cast<int64_t>(text.size());
    return absl::OkStatus();
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  Encoder encoder_;
};

void AddTotals(const TokenizeTotals& more, TokenizeTotals* totals) {
  totals->documents += more.documents;
  totals->bytes += more.bytes;
  totals->tokens += more.tokens;
  totals->counted += more.counted;
  const auto add_rows = [](int64_t rows, const std::string& first, int64_t* all, std::string* all_first) {
    if (*all == 0) *all_first = first;
    *all += rows;
  };
  add_rows(more.skipped, more.first_skipped, &totals->skipped, &totals->first_skipped);
  add_rows(more.dropped, more.first_dropped, &totals->dropped, &totals->first_dropped);
  add_rows(more.spelled, more.first_spelled, &totals->spelled, &totals->first_spelled);
  AddNames(more.ignored, totals);
}

void AddReplaced(const DocumentReader& reader, TokenizeTotals* totals) {
  totals->replaced = reader.replaced();
  totals->first_replaced = reader.first_replaced();
}

// Returns the steps that read batches.
BatchSteps<Batch> Reading(DocumentReader& reader) {
  BatchSteps<Batch> steps;
  // An error has its place in the order, behind what was read before it.
  steps.read = [&reader, status = absl::OkStatus()]() mutable -> absl::StatusOr<std::unique_ptr<Batch>> {
    auto batch = std::make_unique<Batch>();
    std::vector<DocumentPiece>& pieces = batch->pieces;
    for (int64_t bytes = 0; status.ok() && bytes < kBatchBytes;) {
      const size_t before = pieces.size();
      status = reader.Read(&pieces);
      if (pieces.size() == before) break;
      for (size_t i = before; i < pieces.size(); ++i) bytes += std::ssize(pieces[i].text);
    }
    if (!pieces.empty()) return batch;
    SHALE_RETURN_IF_ERROR(status);
    return nullptr;
  };
  return steps;
}

}  // namespace

absl::StatusOr<TokenizeTotals> TokenizeDocuments(const Tokenizer& tokenizer, DocumentReader& reader,
                                                 const TokenizeOptions& options,
                                                 const std::function<absl::Status(const DocumentTokens&)>& add,
                                                 const std::function<void(const TokenizeTotals&)>& progress) {
  SHALE_CHECK(options.threads >= 1);
  std::deque<Worker> workers;
  for (int i = 0; i < options.threads; ++i) workers.emplace_back(tokenizer, options);
  TokenizeTotals totals;
  BatchSteps<Batch> steps = Reading(reader);
  steps.process = [&](int thread, Batch& batch) { return workers[thread].Process(batch); };
  steps.take = [&](Batch& batch) -> absl::Status {
    size_t begin = 0;
    for (const Batch::Document& document : batch.documents) {
      const size_t size = document.tokens_end - begin;
      DocumentTokens tokens = {.tokens = absl::MakeSpan(batch.tokens).subspan(begin, size), .ends = document.ends};
      if (document.counts_in_part) tokens.counts = absl::MakeSpan(batch.counts).subspan(begin, size);
      SHALE_RETURN_IF_ERROR(add(tokens));
      begin = document.tokens_end;
    }
    AddTotals(batch.totals, &totals);
    if (progress != nullptr) progress(totals);
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(ProcessInOrder(options.threads, kBatchesPerThread * options.threads, steps));
  AddReplaced(reader, &totals);
  return totals;
}

absl::StatusOr<TokenizeTotals> CountWordsOfDocuments(DocumentReader& reader, absl::string_view pattern,
                                                     const TokenizeOptions& options, WordCounts* words,
                                                     const std::function<void(const TokenizeTotals&)>& progress) {
  SHALE_CHECK(options.threads >= 1);
  std::vector<WordCounts> of_thread(options.threads);
  TokenizeTotals totals;
  BatchSteps<Batch> steps = Reading(reader);
  steps.process = [&](int thread, Batch& batch) -> absl::Status {
    for (DocumentPiece& piece : batch.pieces) {
      const absl::StatusOr<std::string> text = piece.is_row ? WordsOfRow(piece) : std::move(piece.text);
      if (!text.ok()) {
        if (options.bad_lines == BadLines::kRefuse) return BadRow(piece, text.status());
        if (++batch.totals.skipped == 1) batch.totals.first_skipped = std::string(text.status().message());
        continue;
      }
      CountWords(*text, pattern, &of_thread[thread]);
      batch.totals.documents += piece.ends ? 1 : 0;
      batch.totals.bytes += std::ssize(*text);
    }
    batch.pieces.clear();
    return absl::OkStatus();
  };
  steps.take = [&](Batch& batch) {
    AddTotals(batch.totals, &totals);
    if (progress != nullptr) progress(totals);
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(ProcessInOrder(options.threads, kBatchesPerThread * options.threads, steps));
  AddReplaced(reader, &totals);
  for (WordCounts& some : of_thread) {
    if (words->empty()) {
      *words = std::move(some);
      continue;
    }
    for (const auto& [word, count] : some) (*words)[word] += count;
  }
  return totals;
}

}  // namespace shale
