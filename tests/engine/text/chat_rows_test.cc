// Rows of conversations are what transformers makes of them, or are refused with a reason
// (tests/parity/check_chat_rows.py).
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/file.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/documents/text_row.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

Json RowsGolden() {
  const char* other = std::getenv("CHAT_ROWS_GOLDEN");
  const auto text = ReadFile(other != nullptr ? other : "tests/engine/text/golden/chat_rows.json", 1 << 30);
  EXPECT_TRUE(text.ok()) << text.status();
  Json json = Json::parse(*text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object());
  return json;
}

class ChatRowsTest : public ::testing::Test {
 protected:
  // Returns the template of a case, with special tokens of its tokenizer, or its error.
  const absl::StatusOr<ChatTemplate>& Chat(const Json& one) {
    const std::string name = one["template"], tokenizer = one["tokenizer"];
    auto& chat = chats_[name + "/" + tokenizer];
    if (chat == nullptr) {
      std::vector<std::pair<std::string, std::string>> tokens;
      for (const auto& [token, text] : golden_["tokens"][tokenizer].items()) tokens.emplace_back(token, text);
      chat = std::make_unique<absl::StatusOr<ChatTemplate>>(
          ChatTemplate::Parse(golden_["templates"][name].get<std::string>(), tokens, golden_["date"]));
    }
    return *chat;
  }
  Tokenizer Tokens(const std::string& name) {
    auto& tokenizer = tokenizers_[name];
    if (tokenizer == nullptr) {
      auto loaded = Tokenizer::Load("tests/engine/text/golden/" + name);
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      tokenizer = std::make_unique<Tokenizer>(*std::move(loaded));
    }
    return *tokenizer;
  }
  // Compares a row that was read with what transformers makes of it.
  void Compare(const Json& one, const std::string& line, const TextRow& row) {
    EXPECT_EQ(row.text, one["text"].get<std::string>());
    const Tokenizer tokenizer = Tokens(one["tokenizer"]);
    Encoder encoder(tokenizer);
    std::vector<int32_t> tokens;
    ASSERT_TRUE(encoder.Encode(row.text, {}, &tokens).ok());
    EXPECT_EQ(Json(tokens), one["ids"]);
    std::vector<uint8_t> counts;
    const absl::Status counted = AppendCounts(row, /*special_tokens=*/true, tokenizer, encoder, tokens, 0, &counts);
    if (!counted.ok()) {
      ++reasons_[std::string(counted.message())];
      return;
    }
    // Masks of transformers know of no message that does not count.
    const bool all_count = !absl::StrContains(line, "\"train\"") && !absl::StrContains(line, "\"weight\"");
    if (one.contains("mask") && all_count) {
      EXPECT_EQ(Json(counts), one["mask"]);
    }
    ++equal_;
  }

  const Json golden_ = RowsGolden();
  std::map<std::string, std::unique_ptr<absl::StatusOr<ChatTemplate>>> chats_;
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers_;
  int equal_ = 0, texts_ = 0;
  std::map<std::string, int> reasons_;
};

TEST_F(ChatRowsTest, RowsAreThoseOfTransformersOrRefused) {
  int refused = 0;
  const auto refuse = [&](absl::string_view message) {
    std::string reason(message.substr(0, 70));
    for (char& c : reason) c = c >= '0' && c <= '9' ? '0' : c;
    ++reasons_[reason];
    ++refused;
  };
  for (const Json& one : golden_["cases"]) {
    const std::string line = golden_["rows"][one["row"].get<int>()];
    SCOPED_TRACE(absl::StrCat(one["template"].dump(), " ", one["tokenizer"].dump(), " ", line, " ",
                              golden_["templates"][one["template"]].dump()));
    const DocumentPiece piece = {.text = line, .is_row = true, .path = std::make_shared<const std::string>("rows")};
    if (!Chat(one).ok()) {
      refuse(Chat(one).status().message());
      continue;
    }
    const ChatTemplate& chat = *Chat(one);
    const absl::StatusOr<TextRow> all =
        ReadTextRow(piece, {.loss_on = LossOn::kAll, .chat = &chat, .allow_dropped_text = true});
    if (all.ok()) {
      ++texts_;
      ASSERT_FALSE(one.contains("refused")) << one["refused"] << " " << all->text;
      EXPECT_EQ(all->text, one["text"].get<std::string>());
      if (one.contains("missing")) {
        EXPECT_NE(all->left_out, "") << one["missing"] << " " << all->text;
      }
    }
    const absl::StatusOr<TextRow> row = ReadTextRow(piece, {.chat = &chat});
    if (row.ok()) {
      ASSERT_FALSE(one.contains("refused")) << one["refused"] << " " << row->text;
      EXPECT_FALSE(one.contains("missing")) << one["missing"] << " " << row->text;
      Compare(one, line, *row);
      continue;
    }
    ASSERT_TRUE(absl::StartsWith(row.status().message(), "rows:1: ")) << row.status();
    refuse(row.status().message().substr(8));
  }
  EXPECT_GT(equal_ + texts_, 0);
  EXPECT_GT(refused, 0);
  if (std::getenv("CHAT_ROWS_GOLDEN") == nullptr) return;
  std::cout << equal_ << " rows equal in text, tokens and mask, " << refused << " refused; " << texts_
            << " texts equal, what is left out allowed\n";
  for (const auto& [reason, times] : reasons_) std::cout << "  " << times << " " << reason << "\n";
}

}  // namespace
}  // namespace shale
