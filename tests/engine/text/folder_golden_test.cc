// What transformers makes of folders of tokenizers, which tests/parity/check_tokenizer_folders.py wrote down.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/file.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

Json ReadJsonFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, 1 << 26);
  EXPECT_TRUE(text.ok()) << text.status();
  absl::StatusOr<Json> json = ParseStrictJson(text.value_or(""));
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? *std::move(json) : Json();
}

// Writes the folder of a case.
void WriteFolder(const Json& golden, TempFolder& folder) {
  Json tokenizer =
      ReadJsonFile(absl::StrCat("tests/engine/text/golden/", golden["family"].get<std::string>(), "/tokenizer.json"));
  for (const Json& token : golden["added"]) tokenizer["added_tokens"].push_back(token);
  tokenizer["padding"] = golden["padding"];
  folder.Write("tokenizer.json", tokenizer.dump());
  for (const auto& [name, contents] : golden["files"].items()) {
    // The order of members decides ids, and a golden is an object, which has none: so it has the text of the file.
    folder.Write(name, contents.get<std::string>());
  }
}

// Shale gives what transformers gives, or refuses with the name of a file.
TEST(FolderGoldenTest, FoldersMeanWhatTheyMeanToTransformers) {
  const char* other = std::getenv("FOLDER_GOLDEN");
  const Json golden = ReadJsonFile(other != nullptr ? other : "tests/engine/text/golden/folders.json");
  int equal = 0, accepted_there = 0;
  for (const Json& wanted : golden["cases"]) {
    SCOPED_TRACE(absl::StrCat("seed ", wanted["seed"].get<int>()));
    TempFolder folder;
    WriteFolder(wanted, folder);
    const bool accepted = !wanted.contains("error");
    accepted_there += accepted;
    const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(folder.path());
    if (!tokenizer.ok()) {
      EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(absl::StartsWith(tokenizer.status().message(), folder.path())) << tokenizer.status();
      EXPECT_TRUE(absl::StrContains(tokenizer.status().message(), ".json: ")) << tokenizer.status();
      if (other != nullptr) {
        std::printf("seed %d: %s, Shale: %s\n", wanted["seed"].get<int>(), accepted ? "accepted" : "refused",
                    std::string(tokenizer.status().message().substr(folder.path().size() + 1)).c_str());
      }
      continue;
    }
    EXPECT_TRUE(accepted) << "transformers refuses: " << wanted.value("error", "");
    if (!accepted) continue;
    ++equal;
    std::map<std::string, std::string> special_tokens;
    for (const auto& [name, content] : tokenizer->special_tokens()) special_tokens[name] = content;
    EXPECT_EQ(Json(special_tokens), wanted["special_tokens"]);
    Encoder encoder(*tokenizer);
    for (size_t i = 0; i < wanted["texts"].size(); ++i) {
      std::vector<int32_t> tokens;
      ASSERT_TRUE(encoder.Encode(wanted["texts"][i].get<std::string>(), {}, &tokens).ok());
      EXPECT_EQ(tokens, wanted["ids"][i].get<std::vector<int32_t>>()) << wanted["texts"][i];
    }
    EXPECT_EQ(tokenizer->prefix().size() + tokenizer->suffix().size(), wanted["around"].get<size_t>());
    EXPECT_EQ(DocumentEnd(*tokenizer, folder.path()).value_or(-2), wanted["end"].get<int32_t>());
    EXPECT_EQ(tokenizer->vocabulary(), wanted["vocabulary"].get<int64_t>());
  }
  std::printf("%d of %d folders that transformers accepts are equal, and the others refused\n", equal, accepted_there);
  EXPECT_GE(3 * equal, 2 * accepted_there);
}

}  // namespace
}  // namespace shale
