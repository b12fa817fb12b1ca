// The format of llm.c's token files: a header of 256 32-bit integers, of which the first three are magic number,
// version and number of tokens, and then the tokens.
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/files/data/content.h"
#include "engine/files/data/data_format.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kLlmcHeaderBytes = 1024;

struct LlmcForm {
  int32_t magic = 0;
  int32_t version = 0;
  TokenEncoding encoding;
};

constexpr LlmcForm kGpt2 = {.magic = 20240520,
                            .version = 1,
                            .encoding = {.format = DataFormat::kLlmc,
                                         .tokenizer = "GPT-2 (llm.c)",
                                         .vocabulary = 50257,
                                         .bytes_per_token = 2,
                                         .document_begin_token = 50256}};
constexpr LlmcForm kLlama3 = {.magic = 20240801,
                              .version = 7,
                              .encoding = {.format = DataFormat::kLlmc,
                                           .tokenizer = "Llama 3 (llm.c)",
                                           .vocabulary = 128256,
                                           .bytes_per_token = 4,
                                           .document_begin_token = 128000}};

// Returns the form with this magic number, or null if there is none.
const LlmcForm* FindForm(int32_t magic) {
  return magic == kGpt2.magic ? &kGpt2 : magic == kLlama3.magic ? &kLlama3 : nullptr;
}

// Recognizes the magic numbers. No text begins with one of them, because their bytes are not UTF-8.
bool RecognizesLlmc(absl::string_view head) {
  int32_t magic = 0;
  if (head.size() >= sizeof(magic)) std::memcpy(&magic, head.data(), sizeof(magic));
  return FindForm(magic) != nullptr;
}

absl::StatusOr<TokenContents> CheckLlmc(const InputFile& file) {
  const std::string& path = file.path();
  int32_t header[3] = {};
  // Says what another file is, which data.format=LLMC may name by mistake.
  SHALE_ASSIGN_OR_RETURN(const Content content, RecognizeContent(file));
  if (content.kind != ContentKind::kTokens && content.name != "binary") {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds ", content.name,
                                                   ", and is no llm.c token file; leave data.format out, or give a "
                                                   "token file"));
  }
  if (file.size() < kLlmcHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", file.size(), " bytes, less than the header of ",
                                            kLlmcHeaderBytes, " that an llm.c token file begins with"));
  }
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, header, sizeof(header)));
  const auto [magic, version, count] = header;
  const LlmcForm* form = FindForm(magic);
  if (form == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, " begins with the number ", magic,
                                                   "; an llm.c token file begins with ", kGpt2.magic, " (GPT-2) or ",
                                                   kLlama3.magic, " (Llama-3)"));
  }
  if (version != form->version) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is an llm.c token file of version ", version,
                                                   "; only version ", form->version, " is supported"));
  }
  const int64_t expected_bytes = kLlmcHeaderBytes + int64_t{count} * form->encoding.bytes_per_token;
  if (count < 0 || file.size() != expected_bytes) {
    return absl::DataLossError(absl::StrCat(
        path, count >= 0 && file.size() < expected_bytes ? " was cut short" : " is damaged", ": its header promises ",
        count, " tokens, ", expected_bytes, " bytes in all, but it has ", file.size(), "; copy or tokenize it again"));
  }
  TokenContents contents{.encoding = form->encoding, .header_bytes = kLlmcHeaderBytes, .count = count};
  SHALE_RETURN_IF_ERROR(ScanTokens(file, &contents));
  return contents;
}

}  // namespace

const DataFormatEntry kLlmcFormat = {.format = DataFormat::kLlmc,
                                     .name = "llm.c",
                                     .article = "an",
                                     .file = "llm.c token file",
                                     .encodings = "llm.c for GPT-2, llm.c for Llama-3",
                                     .recognizes = RecognizesLlmc,
                                     .check = CheckLlmc};

}  // namespace shale
