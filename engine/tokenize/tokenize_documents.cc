#include "engine/tokenize/tokenize_documents.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/tokenize/in_order.h"
#include "engine/tokenize/text_row.h"
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
      const absl::StatusOr<TextRow> row = ReadTextRow(piece, options_.loss_on, options_.chat);
      if (row.ok()) {
        SHALE_RETURN_IF_ERROR(At(piece, Add(*row, piece, batch)));
      } else if (absl::IsFailedPrecondition(row.status())) {
        return absl::InvalidArgumentError(absl::StrCat(row.status().message(), ": ", options_.no_chat.message()));
      } else if (options_.bad_lines == BadLines::kRefuse) {
        return BadRow(piece, row.status());
      } else if (++batch.totals.skipped == 1) {
        batch.totals.first_skipped = std::string(row.status().message());
      }
    }
    batch.pieces.clear();
    batch.totals.tokens = std::ssize(batch.tokens);
    batch.totals.counted = std::count(batch.counts.begin(), batch.counts.end(), 1);
    return absl::OkStatus();
  }

 private:
  absl::Status Add(const TextRow& row, const DocumentPiece& piece, Batch& batch) {
    std::vector<int32_t>& tokens = batch.tokens;
    const size_t begin = tokens.size();
    const auto append = [&](const std::vector<int32_t>& more) {
      tokens.insert(tokens.end(), more.begin(), more.end());
    };
    const std::vector<size_t>& turns = row.turns;
    const absl::string_view text = row.text;
    if (piece.begins && !row.is_chat) append(tokenizer_.prefix());
    const size_t text_begin = tokens.size();
    SHALE_RETURN_IF_ERROR(encoder_.Encode(text, {.special_tokens_in_text = row.is_chat}, &tokens));
    const bool all_count = turns.size() == 1 && turns[0] == 0;
    batch.counts.resize(all_count ? begin : text_begin);
    // Of what the tokenizer puts around a text, what comes before a prompt does not count. The end counts if the text
    // before it does.
    if (!all_count) std::fill(batch.counts.begin() + begin, batch.counts.end(), 0);
    for (size_t i = 0; i < turns.size(); ++i) {
      if (turns[i] == 0) continue;
      SHALE_ASSIGN_OR_RETURN(const size_t place, PlaceOf(text.substr(0, turns[i]), row.is_chat, tokens, text_begin));
      batch.counts.resize(std::max(place, batch.counts.size()), i % 2);
    }
    if (piece.ends && !row.is_chat) {
      append(tokenizer_.suffix());
      if (options_.end_of_document >= 0) tokens.push_back(options_.end_of_document);
    }
    batch.counts.resize(tokens.size(), turns.size() % 2);
    batch.documents.push_back({.tokens_end = tokens.size(), .ends = piece.ends, .counts_in_part = !all_count});
    batch.totals.documents += piece.ends ? 1 : 0;
    batch.totals.bytes += static_cast<int64_t>(text.size());
    return absl::OkStatus();
  }

  // Returns the index in `tokens` of the first token that `text` alone does not have. `text` is the beginning of a text
  // whose tokens begin at `begin`.
  absl::StatusOr<size_t> PlaceOf(absl::string_view text, bool is_chat, const std::vector<int32_t>& tokens,
                                 size_t begin) {
    std::vector<int32_t> alone;
    SHALE_RETURN_IF_ERROR(encoder_.Encode(text, {.special_tokens_in_text = is_chat}, &alone));
    return std::mismatch(tokens.begin() + begin, tokens.end(), alone.begin(), alone.end()).first - tokens.begin();
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
  if (totals->skipped == 0) totals->first_skipped = more.first_skipped;
  totals->skipped += more.skipped;
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
