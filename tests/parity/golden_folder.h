// Golden folders, and the tensors in their safetensors files.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/safetensors.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale::testing {

// A copy of a folder of tests/parity/golden. In Bazel's runfiles the files are links that lead out of the folder, which
// the engine refuses.
class GoldenFolder {
 public:
  explicit GoldenFolder(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("tests/parity/golden/", name))) {
      std::filesystem::copy_file(entry.path(), folder_.Path(entry.path().filename().string()));
    }
  }
  const std::string& path() const { return folder_.path(); }

 private:
  const TempFolder folder_;
};

// Returns the names of the folders in a folder of tests/parity/golden, in order.
inline std::vector<std::string> GoldenFolders(const std::string& name) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("tests/parity/golden/", name))) {
    if (entry.is_directory()) folders.push_back(entry.path().filename().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

template <class T>
std::vector<T> Raw(const SafetensorsReader& file, const std::string& name) {
  const SafetensorsTensor* tensor = file.Find(name);
  if (tensor == nullptr) {
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  std::vector<T> values(tensor->size_bytes() / sizeof(T));
  EXPECT_TRUE(file.Read(*tensor, 0, {reinterpret_cast<char*>(values.data()), values.size() * sizeof(T)}).ok());
  return values;
}

// Returns dtype, shape and bytes of the tensors of all safetensors files in a folder, except golden.safetensors.
inline std::map<std::string, std::string> AllTensors(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!absl::EndsWith(name, ".safetensors") || name == "golden.safetensors") continue;
    absl::StatusOr<SafetensorsReader> reader = SafetensorsReader::Open(entry.path().string());
    EXPECT_TRUE(reader.ok()) << reader.status();
    for (const SafetensorsTensor& tensor : reader->tensors()) {
      const std::vector<char> bytes = Raw<char>(*reader, tensor.name);
      std::string& value = all[tensor.name];
      value = absl::StrCat(ToString(tensor.dtype), " ");
      for (const int64_t size : tensor.shape) absl::StrAppend(&value, size, " ");
      value.append(bytes.data(), bytes.size());
    }
  }
  return all;
}

// Writes the tensors after/N of a golden file as tensors N of a new file.
inline void WriteTensorsAfter(const SafetensorsReader& golden, const std::string& path) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const SafetensorsTensor& tensor : golden.tensors()) {
    if (!absl::StartsWith(tensor.name, "after/")) continue;
    entries.push_back({tensor.name.substr(6), tensor.dtype, tensor.shape});
  }
  auto writer = SafetensorsWriter::Create(path, entries, {}).value();
  for (const SafetensorsWriter::Entry& entry : entries) {
    ASSERT_TRUE(writer->AppendFloat32(entry.name, Raw<float>(golden, "after/" + entry.name)).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

// Expects that `values` are `wanted`, which `steps` steps have made of `initial`.
//
// A gradient's relative error is at most 1e-5 (parity_test), and it moves weights by at most learning rate x gradient /
// epsilon. Besides, each step rounds each weight by 2^-24 of itself. The bound is ten times both.
inline void ExpectTrainedLike(const std::vector<float>& values, const std::vector<float>& wanted,
                              const std::vector<float>& initial, int steps, const std::string& name) {
  ASSERT_EQ(wanted.size(), values.size()) << name;
  double apart = 0, moved = 0, size = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    apart += std::pow(static_cast<double>(values[i]) - wanted[i], 2);
    moved += std::pow(static_cast<double>(wanted[i]) - initial[i], 2);
    size += std::pow(static_cast<double>(wanted[i]), 2);
  }
  EXPECT_LE(std::sqrt(apart), 1e-4 * std::sqrt(moved) + 10 * steps * std::pow(2, -24) * std::sqrt(size)) << name;
}

}  // namespace shale::testing
