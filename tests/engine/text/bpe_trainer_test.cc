#include "engine/text/tokenizer/bpe_trainer.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/file.h"
#include "engine/text/tokenizer/character.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

Json ReadJson(const std::string& name) {
  const absl::StatusOr<std::string> text = ReadFile("tests/engine/text/golden/" + name, 1 << 22);
  EXPECT_TRUE(text.ok()) << text.status();
  absl::StatusOr<Json> json = ParseStrictJson(*text);
  EXPECT_TRUE(json.ok()) << json.status();
  return *std::move(json);
}

// The documents of the goldens, each with a line end, as make_tokenizer_goldens.py trains on them.
std::string Text() {
  const Json json = ReadJson("documents.json");
  std::string text;
  for (const Json& hex : json["hex"]) {
    text += ReplaceIllFormed(absl::HexStringToBytes(hex.get<std::string>())) + "\n";
  }
  return text;
}

TEST(BpeTrainerTest, MergesAreThoseOfTheLibrary) {
  const Json golden = ReadJson("trained.json");
  for (const auto& [name, pattern] : {std::pair("gpt2", kGpt2Pattern), std::pair("llama3", kLlama3Pattern)}) {
    WordCounts words;
    CountWords(Text(), pattern, &words);
    const TrainedBpe bpe = TrainBpe(words, {"<|endoftext|>"}, 900, 2);
    EXPECT_EQ(bpe.tokens.size(), 900);
    const absl::StatusOr<Json> json = ParseStrictJson(TokenizerJson(bpe, {"<|endoftext|>"}, pattern));
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ((*json)["model"]["merges"], golden[name]) << name;
  }
}

TEST(BpeTrainerTest, TheTokenizerReadsWhatWasTrained) {
  WordCounts words;
  CountWords(Text(), kLlama3Pattern, &words);
  const absl::StatusOr<Tokenizer> tokenizer =
      Tokenizer::FromJson(TokenizerJson(TrainBpe(words, {"<|endoftext|>"}, 500, 1), {"<|endoftext|>"}, kLlama3Pattern));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->vocabulary(), 500);
  EXPECT_EQ(tokenizer->Find("<|endoftext|>"), 0);
  std::vector<int32_t> tokens;
  ASSERT_TRUE(Encoder(*tokenizer).Encode(Text(), {}, &tokens).ok());
  EXPECT_EQ(tokenizer->Decode(tokens, false), Text());
  EXPECT_LT(tokens.size(), Text().size());
}

TEST(BpeTrainerTest, EndsWhenNoPairIsFrequentEnough) {
  const WordCounts words = {{"ab", 2}, {"cd", 1}, {"abcd", 1}};
  // (a, b) occurs three times, (c, d) twice; then (ab, cd) once.
  EXPECT_EQ(TrainBpe(words, {}, 1000, 2).merges.size(), 2);
  EXPECT_EQ(TrainBpe(words, {}, 1000, 1).merges.size(), 3);
  EXPECT_EQ(TrainBpe(words, {}, 1000, 3).merges.size(), 1);
  EXPECT_EQ(TrainBpe(words, {}, 257, 1).merges.size(), 1);
  EXPECT_EQ(TrainBpe({}, {}, 1000, 1).tokens.size(), 256);
}

}  // namespace
}  // namespace shale
