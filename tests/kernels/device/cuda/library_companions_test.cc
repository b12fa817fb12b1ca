// Tests that a library finds what it opens by itself, in a folder that is not on the loader's path. The loader runs
// without its cache and without LD_LIBRARY_PATH, so that nothing but the system's own folders is on its path.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/cuda/shared_library.h"

namespace shale {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path& Here() {
  static const fs::path here = fs::absolute("tests/kernels/device/cuda");
  return here;
}

fs::path EmptyFolder(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

// Returns an own folder with copies of these stand-ins.
fs::path FolderWith(const std::string& name, const std::vector<std::string>& files) {
  const fs::path folder = EmptyFolder(name);
  for (const std::string& file : files) fs::copy_file(Here() / "companions" / file, folder / file);
  return folder;
}

// Runs a program of this package under a loader whose path holds only the system's own folders. Returns what it prints.
std::string Loaded(const std::string& program, const std::vector<std::string>& arguments) {
  // With AddressSanitizer, the program must not print what it suppresses.
  std::string command = "env -i LSAN_OPTIONS=print_suppressions=0 /lib64/ld-linux-x86-64.so.2 --inhibit-cache ";
  command += (Here() / program).string();
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::string printed;
  for (int c; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) printed += static_cast<char>(c);
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  return status == 0 ? printed : printed + " (fails)";
}

const std::vector<std::string> kNvrtc = {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0"};
const std::vector<std::string> kCudnn = {"libcudnn.so.9",
                                         "libcudnn_graph.so.9",
                                         "libcudnn_ops.so.9",
                                         "libcudnn_heuristic.so.9",
                                         "libcudnn_engines_precompiled.so.9",
                                         "libcudnn_engines_runtime_compiled.so.9"};

// NVRTC 13.0 has no RUNPATH, and its builtins were not found in the folder of a Python package.
TEST(LibraryCompanionsTest, ALibraryFindsWhatItOpensByItselfInItsOwnFolder) {
  for (const auto& files : {kNvrtc, kCudnn}) {
    std::vector<std::string> arguments = {FolderWith("elsewhere", files)};
    arguments.insert(arguments.end(), files.begin(), files.end());
    EXPECT_EQ(Loaded("open_by_name", arguments), "");
    // dlopen alone leaves them unfound.
    arguments.insert(arguments.begin(), "--alone");
    std::string unfound;
    for (size_t i = 1; i < files.size(); ++i) unfound += files[i] + "\n";
    EXPECT_EQ(Loaded("open_by_name", arguments), unfound);
  }
}

TEST(LibraryCompanionsTest, CompanionsHaveCompanions) {
  std::vector<std::string> files = kNvrtc;
  files.insert(files.begin(), "libcublasLt.so.13");
  const std::string folder = FolderWith("cublas", files);
  EXPECT_EQ(Loaded("open_by_name", {folder, files[0], files[1], files[2]}), "");
}

TEST(LibraryCompanionsTest, ALinkLeadsToTheFolderOfTheFile) {
  const fs::path folder = FolderWith("real", kNvrtc), links = EmptyFolder("links");
  fs::create_symlink(folder / kNvrtc[0], links / kNvrtc[0]);
  EXPECT_EQ(Loaded("open_by_name", {links, kNvrtc[0], kNvrtc[1]}), "");
}

TEST(LibraryCompanionsTest, WithoutOneThatItNeedsALibraryDoesNotLoad) {
  const std::string folder = FolderWith("alone", {kNvrtc[0]});
  EXPECT_THAT(Loaded("open_by_name", {folder, kNvrtc[0], kNvrtc[1]}),
              AllOf(HasSubstr(folder + "/libnvrtc.so.13 opens libnvrtc-builtins.so.13.* by itself"),
                    HasSubstr("not in its folder"), HasSubstr("(fails)")));
  fs::copy_file(Here() / "open_by_name", folder + "/libnvrtc-builtins.so.13.0");
  EXPECT_THAT(Loaded("open_by_name", {folder, kNvrtc[0], kNvrtc[1]}),
              AllOf(HasSubstr("libnvrtc-builtins.so.13.0 by itself, and that does not load: "), HasSubstr("(fails)")));
}

// A place whose library is incomplete must not stand in the way of a complete one.
TEST(LibraryCompanionsTest, ACompleteLibraryInALaterPlaceIsTaken) {
  const std::string alone = FolderWith("alone", {kNvrtc[0]}), whole = FolderWith("whole", kNvrtc);
  const auto library = SharedLibrary::Open({"NVRTC", kNvrtc[0], "it"},
                                           {.folders = {alone, whole}, .cuda_home = "", .loader_path = false});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->path(), whole + "/" + kNvrtc[0]);
}

TEST(LibraryCompanionsTest, TheRealNvrtcCompilesInAFolderOfItsOwn) {
  fs::path found;
  LibrarySearch search = LibrarySearch::FromEnvironment();
  search.folders.push_back(search.cuda_home + "/lib64");
  for (const fs::path folder : search.folders) {
    if (found.empty() && fs::exists(folder / kNvrtc[0])) found = folder;
  }
  if (found.empty()) GTEST_SKIP() << "no " << kNvrtc[0];
  const fs::path folder = EmptyFolder("nvrtc");
  for (const auto& file : fs::directory_iterator(found)) {
    const std::string name = file.path().filename();
    if (name == kNvrtc[0] || name.rfind("libnvrtc-builtins.so.13.", 0) == 0) {
      fs::copy_file(fs::canonical(file.path()), folder / name);
    }
  }
  EXPECT_EQ(Loaded("compile_with_nvrtc", {folder, kNvrtc[0]}), "");
}

}  // namespace
}  // namespace shale
