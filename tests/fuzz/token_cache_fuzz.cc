// Fuzzes the files of the cache of tokens: with right checksums, as if another program had written them, and a manifest
// as it is. Each is refused, or gives tokens of the vocabulary, with masks and documents that divide them.
//
// An input is a byte that says which of both, and then a manifest; or two bytes with the sizes of the files of what
// counts and of documents in eights, and these files and the tokens behind them.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/data_source.h"
#include "engine/files/data/sample_sources.h"
#include "engine/files/data/token_source.h"
#include "engine/text/documents/prepared_text.h"
#include "engine/text/tokenizer/bpe_trainer.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "kernels/check.h"
#include "tests/engine/files/data/llmc_bytes.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

void CheckCachedTokens(const TokenSource& source) {
  const int64_t size = source.size();
  std::vector<int32_t> tokens(size), targets(size);
  SHALE_CHECK(source.Read(0, size, tokens.data()).ok());
  for (const int32_t token : tokens) SHALE_CHECK(token >= 0 && token < source.vocabulary()) << token;
  SHALE_CHECK(source.MaskTargets(0, size, targets.data()).ok());
  for (const int32_t target : targets) SHALE_CHECK(target == 0 || target == kMaskedTarget) << target;
  const absl::StatusOr<std::vector<int64_t>> begins = source.DocumentBegins();
  if (!begins.ok()) return CheckRefusal(begins.status());
  int64_t before = 0;
  for (const int64_t begin : *begins) {
    SHALE_CHECK(begin > before && begin < size) << begin;
    before = begin;
  }
  constexpr int64_t kLength = 4;
  for (const Packing packing : {Packing::kPack, Packing::kPad}) {
    const auto samples = DocumentSamples::Create(source, packing, {}, kLength);
    if (!samples.ok()) return CheckRefusal(samples.status());
    std::vector<int32_t> inputs(kLength), of_sample(kLength), ids(packing == Packing::kPack ? kLength : 0);
    for (int64_t i = 0; i < std::min<int64_t>((*samples)->description().samples, 8); ++i) {
      SHALE_CHECK((*samples)
                      ->Read(i, {.inputs = absl::MakeSpan(inputs),
                                 .targets = absl::MakeSpan(of_sample),
                                 .position_ids = absl::MakeSpan(ids)})
                      .ok());
    }
  }
}

void CheckFiles(absl::string_view input) {
  static const MemoryFolder folder;
  if (input.size() < 2) return;
  const size_t counts = static_cast<uint8_t>(input[0]), documents = 8 * static_cast<uint8_t>(input[1]);
  const auto take = [&](size_t size) {
    const absl::string_view taken = input.substr(0, size);
    input.remove_prefix(taken.size());
    return taken;
  };
  take(2);
  folder.Write("counts", take(counts));
  folder.Write("documents", take(documents));
  folder.Write("tokens.bin", LlmcBytes(std::vector<uint16_t>(input.begin(), input.end())));
  const absl::StatusOr<TokenSource> source =
      TokenSource::OpenText(folder.Path("tokens.bin"), {.path = "text",
                                                        .vocabulary = 300,
                                                        .counts_path = counts > 0 ? folder.Path("counts") : "",
                                                        .documents_path = folder.Path("documents")});
  if (!source.ok()) return CheckRefusal(source.status());
  CheckCachedTokens(*source);
}

// A cache with the tokens of one text.
struct Cache {
  MemoryFolder folder;
  TextData text;
  std::string manifest;  // Its path in the folder.

  Cache() {
    std::filesystem::create_directory(folder.Path("tokenizer"));
    const std::vector<std::string> special = {"<|endoftext|>"};
    folder.Write("tokenizer/tokenizer.json", TokenizerJson(TrainBpe({}, special, 257, 1), special, kGpt2Pattern));
    folder.Write("text.jsonl", "{\"prompt\": \"ab\", \"completion\": \"ba\"}\n{\"text\": \"abab\"}\n");
    text = {.path = folder.Path("text.jsonl"), .tokenizer = folder.Path("tokenizer")};
    const absl::StatusOr<PreparedText> made = Prepare();
    SHALE_CHECK(made.ok()) << made.status();
    SHALE_CHECK(made->report.made);
    manifest =
        absl::StrCat("tokens/", std::filesystem::path(made->report.folder).filename().string(), "/.manifest.json");
  }
  absl::StatusOr<PreparedText> Prepare() const { return PrepareText(text, {.cache = folder.Path("tokens")}); }
};

void CheckManifest(absl::string_view manifest) {
  static const Cache cache;
  cache.folder.Write(cache.manifest, manifest);
  const absl::StatusOr<PreparedText> prepared = cache.Prepare();
  if (!prepared.ok()) return CheckRefusal(prepared.status());
  CheckCachedTokens(prepared->tokens);
}

void CheckTokenCache(absl::string_view input) {
  if (input.empty()) return;
  const absl::string_view rest = input.substr(1);
  input[0] == 'm' ? CheckManifest(rest) : CheckFiles(rest);
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckTokenCache({reinterpret_cast<const char*>(data), size});
  return 0;
}
