#include "tests/engine/run/train/creations.h"

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

int g_creations = 30;

}  // namespace

int Creations() { return g_creations; }

}  // namespace shale

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (!absl::ConsumePrefix(&argument, "--creations=") || !absl::SimpleAtoi(argument, &shale::g_creations)) return 2;
  }
  return RUN_ALL_TESTS();
}
