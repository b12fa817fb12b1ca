#include <string>

#include "engine/io/file.h"
#include "engine/tokenize/tokenizer.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Returns the error for the tokenizer.json of a golden after a change of one place.
std::string ErrorWith(const std::string& family, const std::string& from, const std::string& to) {
  const std::string path = absl::StrCat("tests/engine/tokenize/golden/", family, "/tokenizer.json");
  absl::StatusOr<std::string> text = ReadFile(path, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  const size_t at = text->find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at == std::string::npos) return "";
  text->replace(at, from.size(), to);
  const absl::Status status = Tokenizer::FromJson(*text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << to;
  return std::string(status.message());
}

TEST(RefusalsTest, PartsThatAreNotKnownAreNamed) {
  EXPECT_EQ(ErrorWith("qwen2", R"({"type":"NFC"})", R"({"type":"Lowercase"})"),
            "normalizer: the normalizer \"Lowercase\" is not supported; supported: NFC, NFD, NFKC, NFKD, Prepend, "
            "Replace, Sequence");
  EXPECT_EQ(ErrorWith("falcon", R"("type":"Digits")", R"("type":"BertPreTokenizer")"),
            "pre_tokenizer.pretokenizers[2]: the pre-tokenizer \"BertPreTokenizer\" is not supported; supported: "
            "ByteLevel, Split, Digits, Punctuation, Metaspace, Sequence");
  EXPECT_EQ(ErrorWith("gpt2", R"("decoder":{"type":"ByteLevel")", R"("decoder":{"type":"CTC")"),
            "decoder: the decoder \"CTC\" is not supported; supported: ByteLevel, ByteFallback, Fuse, Strip, Replace, "
            "Metaspace, Sequence");
  EXPECT_EQ(ErrorWith("llama3", R"("type":"TemplateProcessing")", R"("type":"RobertaProcessing")"),
            "post_processor.processors[1]: the post-processor \"RobertaProcessing\" is not supported; supported: "
            "ByteLevel, TemplateProcessing, Sequence");
  EXPECT_EQ(ErrorWith("gpt2", R"("type":"BPE")", R"("type":"Unigram")"),
            "model: the model \"Unigram\" is not supported; supported: BPE");
  EXPECT_EQ(ErrorWith("gpt2", R"("trim_offsets":)", R"("trim":)"),
            "pre_tokenizer: \"trim\" is not known; known: add_prefix_space, trim_offsets, use_regex");
}

TEST(RefusalsTest, SettingsThatWouldChangeTokensAreNamed) {
  EXPECT_EQ(ErrorWith("gpt2", R"("dropout":null)", R"("dropout":0.1)"), "model: dropout is not supported");
  EXPECT_EQ(ErrorWith("gpt2", R"("end_of_word_suffix":null)", R"("end_of_word_suffix":"</w>")"),
            "model: end_of_word_suffix is not supported");
  EXPECT_EQ(ErrorWith("gpt2", R"("id":0)", R"("id":5)"),
            "added_tokens[0]: id: found 5 for \"<|endoftext|>\"; wanted 0, which the vocabulary and the tokens before "
            "it give");
  EXPECT_EQ(ErrorWith("gpt2", R"("version":"1.0")", R"("version":"2.0")"),
            "tokenizer: version: found \"2.0\"; wanted \"1.0\"");
}

TEST(RefusalsTest, DamagedFilesAreRefused) {
  EXPECT_EQ(ErrorWith("gpt2", R"("version")", "version"), "it is not JSON at its byte 2");
  EXPECT_EQ(ErrorWith("gpt2", R"("merges":[)", R"("merges":[["!","no such token"],)"),
            "model.merges[0]: the token \"no such token\" is not in the vocabulary");
  EXPECT_EQ(ErrorWith("gpt2", R"("!":1,)", R"("!":2,)"), "model.vocab: tokens \"!\" and \"\\\"\" have the same id 2");
  EXPECT_EQ(ErrorWith("gpt2", R"("!":1,)", R"("!":99999999999,)"),
            "model.vocab: token \"!\": found 99999999999; wanted an id from 0 to 4194303");
  EXPECT_EQ(Tokenizer::Load("tests/no such folder").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace shale
