#include "engine/tokenize/tokenize_documents.h"

#include <atomic>
#include <deque>
#include <thread>

#include "kernels/check.h"

namespace shale {
namespace {

// Pieces that a thread has on average before all threads wait for the last one.
constexpr int64_t kBytesPerThread = int64_t{8} << 20;

struct Work {
  DocumentPiece piece;
  std::vector<int32_t> tokens;
  absl::Status status;
};

void Encode(const Tokenizer& tokenizer, const TokenizeOptions& options, Encoder& encoder, Work& work) {
  const auto append = [&](const std::vector<int32_t>& tokens) {
    work.tokens.insert(work.tokens.end(), tokens.begin(), tokens.end());
  };
  if (work.piece.begins) append(tokenizer.prefix());
  work.status = encoder.Encode(work.piece.text, {.special_tokens_in_text = false}, &work.tokens);
  if (!work.piece.ends) return;
  append(tokenizer.suffix());
  if (options.end_of_document >= 0) work.tokens.push_back(options.end_of_document);
}

}  // namespace

absl::StatusOr<TokenizeTotals> TokenizeDocuments(const Tokenizer& tokenizer, DocumentReader& reader,
                                                 const TokenizeOptions& options,
                                                 const std::function<absl::Status(absl::Span<const int32_t>)>& add,
                                                 const std::function<void(const TokenizeTotals&)>& progress) {
  SHALE_CHECK(options.threads >= 1);
  std::deque<Encoder> encoders;
  for (int i = 0; i < options.threads; ++i) encoders.emplace_back(tokenizer);
  TokenizeTotals totals;
  while (true) {
    std::vector<DocumentPiece> pieces;
    for (int64_t bytes = 0; bytes < kBytesPerThread * options.threads;) {
      const size_t before = pieces.size();
      SHALE_RETURN_IF_ERROR(reader.Read(&pieces));
      if (pieces.size() == before) break;
      for (size_t i = before; i < pieces.size(); ++i) bytes += pieces[i].text.size() + 1;
    }
    if (pieces.empty()) return totals;
    std::vector<Work> all(pieces.size());
    for (size_t i = 0; i < all.size(); ++i) all[i].piece = std::move(pieces[i]);
    std::atomic<size_t> next = 0;
    const auto encode = [&](Encoder& encoder) {
      for (size_t i = next++; i < all.size(); i = next++) Encode(tokenizer, options, encoder, all[i]);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < options.threads; ++i) others.emplace_back([&, i] { encode(encoders[i]); });
    encode(encoders[0]);
    for (std::thread& other : others) other.join();
    for (const Work& work : all) {
      SHALE_RETURN_IF_ERROR(work.status);
      SHALE_RETURN_IF_ERROR(add(work.tokens));
      totals.documents += work.piece.ends ? 1 : 0;
      totals.bytes += work.piece.text.size();
      totals.tokens += work.tokens.size();
    }
    if (progress != nullptr) progress(totals);
  }
}

}  // namespace shale
