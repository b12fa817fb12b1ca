#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/io/file.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Returns the error for the tokenizer.json of a golden after a change of one place.
std::string ErrorWith(const std::string& family, const std::string& from, const std::string& to) {
  const std::string path = absl::StrCat("tests/engine/text/golden/", family, "/tokenizer.json");
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
  EXPECT_EQ(ErrorWith("gemma", "\"<0xC3>\"", "\"<0xC3>.\""), "model: byte_fallback needs the tokens <0x00> to <0xFF>");
  EXPECT_EQ(ErrorWith("gpt2", R"("version":"1.0")", R"("version":"2.0")"),
            "tokenizer: version: found \"2.0\"; wanted \"1.0\"");
}

// Returns the tokens of a text after a change of one place, or the message if it has none.
std::string TokensWith(const std::string& family, const std::string& from, const std::string& to,
                       const std::string& text) {
  absl::StatusOr<std::string> json =
      ReadFile(absl::StrCat("tests/engine/text/golden/", family, "/tokenizer.json"), 1 << 20);
  EXPECT_TRUE(json.ok()) << json.status();
  const size_t at = json->find(from);
  EXPECT_NE(at, std::string::npos) << from;
  json->replace(at, from.size(), to);
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::FromJson(*json);
  if (!tokenizer.ok()) return std::string(tokenizer.status().message());
  std::vector<int32_t> tokens;
  const absl::Status status = Encoder(*tokenizer).Encode(text, {}, &tokens);
  return status.ok() ? absl::StrJoin(tokens, " ") : std::string(status.message());
}

// Returns the message of that, or "" if it has tokens.
std::string LimitWith(const std::string& family, const std::string& from, const std::string& to,
                      const std::string& text) {
  const std::string tokens = TokensWith(family, from, to, text);
  return tokens.find_first_not_of("0123456789 ") == std::string::npos ? "" : tokens;
}

// Twelve steps of Replace took all memory there was.
TEST(RefusalsTest, NormalizersDoNotGrowWithoutBounds) {
  const std::string nfc = R"({"type":"NFC"})";
  const auto sequence = [](const std::string& step, int steps) {
    std::string all = R"({"type":"Sequence","normalizers":[)";
    for (int i = 0; i < steps; ++i) absl::StrAppend(&all, i > 0 ? "," : "", step);
    return all + "]}";
  };
  const std::string replace = R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaa"})";
  EXPECT_EQ(LimitWith("qwen2", nfc, sequence(replace, 3), "aaa"), "");
  EXPECT_EQ(LimitWith("qwen2", nfc, sequence(replace, 12), "aaa"),
            "the tokenizer makes more than 65572 bytes of a text of 3 bytes, the most that is allowed");
  const std::string prepend = absl::StrCat(R"({"type":"Prepend","prepend":")", std::string(70'000, 'b'), "\"}");
  EXPECT_EQ(LimitWith("qwen2", nfc, prepend, "aaa"),
            "the tokenizer makes more than 65572 bytes of a text of 3 bytes, the most that is allowed");
  EXPECT_EQ(LimitWith("qwen2", nfc, sequence(nfc, 65), "aaa"),
            "normalizer.normalizers[64]: more than 64 steps are not supported");
}

TEST(RefusalsTest, OtherPartsDoNotGrowEither) {
  const std::string grows = R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaaaaaaaaaaaa"},)";
  const std::string fallback = R"({"type":"ByteFallback"})";
  EXPECT_EQ(LimitWith("llama2", fallback, absl::StrCat(grows, grows, fallback), ""),
            "decoder.decoders[2]: the steps so far make a token more than 256 times as long");
  std::string ids = "0";
  for (int i = 0; i < 1024; ++i) ids += ",0";
  EXPECT_EQ(LimitWith("llama2", R"("ids":[1])", absl::StrCat("\"ids\":[", ids, "]"), ""),
            "post_processor.single[0].SpecialToken: more than 1024 tokens around a text are not supported");
}

// The marks that Metaspace puts before a text stand for no byte, and ended the process.
TEST(RefusalsTest, MarksDoNotFollowBytes) {
  const std::string bytes = R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
  const std::string marks = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true})";
  EXPECT_EQ(LimitWith("qwen2", bytes, absl::StrCat(bytes, ",", marks), "a b"),
            "pre_tokenizer.pretokenizers[2]: Metaspace is not supported behind ByteLevel");
  EXPECT_EQ(LimitWith("qwen2", bytes, absl::StrCat(marks, ",", bytes), "a b"), "");
}

// Each space was a token that looked at all other spaces, which took minutes.
TEST(RefusalsTest, SpacesBesideTokensAreLookedAtOnce) {
  for (const char* strips : {"lstrip", "rstrip"}) {
    const std::string token = absl::StrCat(R"({"id":700,"content":" ",")", strips, R"(":true},)");
    EXPECT_EQ(LimitWith("gpt2", "\"added_tokens\":[", "\"added_tokens\":[" + token, std::string(400'000, ' ')), "");
  }
}

// Spaces that one added token had stripped became a second token, or text twice. The tokens are those of the library.
TEST(RefusalsTest, SpaceBetweenTokensIsTakenOnce) {
  const auto tokens = [](const std::string& added, const std::string& text) {
    return TokensWith("metaspace", "\"added_tokens\":[]", absl::StrCat("\"added_tokens\":[", added, "]"), text);
  };
  EXPECT_EQ(tokens(R"({"id":759,"content":" ","lstrip":true,"rstrip":true})", " a  b c "),
            "759 390 759 410 759 538 759");
  EXPECT_EQ(tokens(R"({"id":759,"content":"a?","rstrip":true},{"id":760,"content":" ","lstrip":true})", "a?   b"),
            "the added token \" \" strips white space on its left and stands at byte 2 in white space that the token "
            "before it has stripped on its right, where the tokenizers library fails");
}

// A mark before the beginning of a text stood where the library has none: that looks where a piece stood in the text
// before it was normalized. The tokens are those of the library.
TEST(RefusalsTest, TheBeginningOfATextIsThatOfTheLibrary) {
  const std::string marks = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false})";
  const auto tokens = [](const std::string& normalizer, const std::string& pre_tokenizer) {
    return TokensWith("metaspace",
                      R"("normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"▁",)"
                      R"("prepend_scheme":"always","split":true})",
                      absl::StrCat("\"normalizer\":", normalizer, ",\"pre_tokenizer\":", pre_tokenizer), "ab ab");
  };
  const auto replace = [](const std::string& what, const std::string& content) {
    return absl::StrCat(R"({"type":"Replace","pattern":{"String":")", what, R"("},"content":")", content, "\"}");
  };
  const auto behind = [&](const std::string& behavior) {
    return absl::StrCat(R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":"a"},"behavior":")",
                        behavior, R"(","invert":false},)", marks, "]}");
  };
  EXPECT_EQ(tokens("null", marks), "378 386 378 386");
  EXPECT_EQ(tokens(replace("a", "xyz"), marks), "392 316 317 293 392 316 317 293");
  EXPECT_EQ(tokens("null", behind("Isolated")), "390 293 378 292 293");
  const std::string by_normalizer =
      "pre_tokenizer: Metaspace with prepend_scheme \"first\" is not supported with this normalizer, which may change "
      "where the tokenizers library sees the beginning of the text";
  EXPECT_EQ(tokens(replace("a", ""), marks), by_normalizer);    // The library: 293 410, without a mark.
  EXPECT_EQ(tokens(replace("ab", "x"), marks), by_normalizer);  // 315 392, the same.
  EXPECT_EQ(tokens(R"({"type":"Prepend","prepend":"a"})", behind("Isolated")), by_normalizer);  // Two marks.
  EXPECT_EQ(
      tokens("null", behind("Removed")),
      "pre_tokenizer.pretokenizers[1]: Metaspace with prepend_scheme \"first\" is not supported behind Metaspace, "
      "nor behind a step that removes its matches");
  EXPECT_EQ(tokens(R"({"type":"Prepend","prepend":""})", marks),
            "normalizer: prepend is empty, and the tokenizers library then repeats a character");
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
