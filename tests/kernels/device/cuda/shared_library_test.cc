#include "kernels/device/cuda/shared_library.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFile[] = "libshale_sample.so";

LibraryName Sample() { return {.title = "Sample", .file = kFile, .source = "the sample package"}; }

// Returns the folder in which Bazel built the sample.
std::string Built() { return fs::current_path() / "tests/kernels/device/cuda"; }

std::string Folder(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / name;
  fs::create_directories(folder);
  return folder;
}

std::string CopyTo(const std::string& folder) {
  fs::copy_file(fs::path(Built()) / kFile, fs::path(folder) / kFile, fs::copy_options::overwrite_existing);
  return folder;
}

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

TEST(SharedLibraryTest, ItsFunctionsCanBeCalled) {
  const auto library = SharedLibrary::Open(Sample(), {.folders = {Built()}, .cuda_home = "", .loader_path = false});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->path(), Built() + "/" + kFile);
  int (*answer)(int) = nullptr;
  ASSERT_TRUE(library->Bind("ShaleSampleAnswer", answer).ok());
  EXPECT_EQ(answer(21), 42);
}

TEST(SharedLibraryTest, TheFirstPlaceThatHasItWins) {
  const std::string empty = Folder("empty"), first = CopyTo(Folder("first")), second = CopyTo(Folder("second"));
  const std::string home = Folder("cuda");
  CopyTo(Folder("cuda/lib64"));
  const auto path = [](const LibrarySearch& search) {
    const auto library = SharedLibrary::Open(Sample(), search);
    return library.ok() ? library->path() : MessageOf(library.status());
  };
  EXPECT_EQ(path({.folders = {empty, first, second}, .cuda_home = home}), first + "/" + kFile);
  EXPECT_EQ(path({.folders = {second, first}, .cuda_home = home}), second + "/" + kFile);
  EXPECT_EQ(path({.folders = {empty}, .cuda_home = home}), home + "/lib64/" + kFile);
}

TEST(SharedLibraryTest, PackagesOfAPythonEnvironmentAreFound) {
  const std::string site = Folder("site-packages"), package = CopyTo(Folder("site-packages/nvidia/sample/lib"));
  Folder("site-packages/nvidia/another/include");
  const auto library = SharedLibrary::Open(Sample(), {.folders = {site}, .cuda_home = "", .loader_path = false});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->path(), package + "/" + kFile);
}

TEST(SharedLibraryTest, TheLoadersPathLeadsToLibrariesOfTheSystem) {
  const LibraryName name = {.title = "C library", .file = "libc.so.6", .source = "a system"};
  const auto library = SharedLibrary::Open(name, {.cuda_home = ""});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->path(), "libc.so.6");
}

TEST(SharedLibraryTest, AMissingOneIsAnErrorThatSaysWhereItWasLookedForAndWhatToInstall) {
  const std::string empty = Folder("empty");
  const LibraryName name = {.title = "cuBLASLt", .file = "libno_such_thing.so.13", .source = "the CUDA toolkit 13"};
  const absl::Status status = SharedLibrary::Open(name, {.folders = {empty}, .cuda_home = "/no/cuda"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr("cuBLASLt: wanted libno_such_thing.so.13"), HasSubstr(empty), HasSubstr("/no/cuda/lib64"),
                    HasSubstr("ldconfig"), HasSubstr("Install the CUDA toolkit 13"), HasSubstr("SHALE_CUDA_LIBRARIES"),
                    Not(HasSubstr("does not load"))));
  const absl::Status nowhere = SharedLibrary::Open(name, {.cuda_home = "", .loader_path = false}).status();
  EXPECT_THAT(MessageOf(nowhere), HasSubstr("none was given"));
}

TEST(SharedLibraryTest, AFileThatIsNoLibraryIsNamedAndPassedOver) {
  const std::string broken = Folder("broken"), good = CopyTo(Folder("good"));
  std::ofstream(broken + "/" + kFile) << "not a library";
  const absl::Status status =
      SharedLibrary::Open(Sample(), {.folders = {broken}, .cuda_home = "", .loader_path = false}).status();
  EXPECT_THAT(MessageOf(status), HasSubstr(broken + "/" + kFile + " does not load: "));
  EXPECT_TRUE(SharedLibrary::Open(Sample(), {.folders = {broken, good}, .cuda_home = ""}).ok());
}

TEST(SharedLibraryTest, AMissingFunctionIsAnErrorThatNamesTheFileAndTheFunction) {
  const auto library = SharedLibrary::Open(Sample(), {.folders = {Built()}});
  ASSERT_TRUE(library.ok()) << library.status();
  void (*none)() = nullptr;
  const absl::Status status = library->Bind("ShaleSampleNone", none);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(none, nullptr);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr(library->path()), HasSubstr("ShaleSampleNone"), HasSubstr("the sample package")));
}

TEST(SharedLibraryTest, TheEnvironmentNamesFoldersAndTheToolkit) {
  setenv("SHALE_CUDA_LIBRARIES", "/a:/b/site-packages::", 1);
  setenv("CUDA_HOME", "/opt/cuda", 1);
  const LibrarySearch search = LibrarySearch::FromEnvironment();
  EXPECT_THAT(search.folders, ElementsAre("/a", "/b/site-packages"));
  EXPECT_EQ(search.cuda_home, "/opt/cuda");
  unsetenv("SHALE_CUDA_LIBRARIES");
  unsetenv("CUDA_HOME");
  EXPECT_TRUE(LibrarySearch::FromEnvironment().folders.empty());
  EXPECT_EQ(LibrarySearch::FromEnvironment().cuda_home, "/usr/local/cuda");
}

}  // namespace
}  // namespace shale
