// Finds the files of data: those of a folder and its subfolders, or those that a list names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/data/content.h"
#include "engine/files/data/data_enums.h"

namespace shale {

struct DataFile {
  std::string path;
  Content content;
  bool rows = false;  // It is read as rows of JSON.
};

struct DataFiles {
  std::vector<DataFile> files;       // In order. At least one.
  std::vector<std::string> skipped;  // Entries of folders that are left out: "art.dat (binary)".
};

// Returns the files at `path`, each of which has bytes.
//
// A folder gives the files in it and in its subfolders, in byte order of their paths. It leaves out what cannot be
// data: hidden files and folders, and folders named __*; empty files; what describes the data (README*, LICENSE*,
// dataset_infos.json and so on); links to folders; a file that was met before under another name; binary files. If the
// names of files or folders say of which split they are, as those of the Hugging Face hub do, it takes one split
// (Splits). It names all of these in `skipped`, but the hidden.
//
// Returns InvalidArgument, with the names of files, if no file is left; for a folder in which text, rows and tokens
// mix, or which has data in a form that is not read; if the split to take is not clear; for a file in a form that is
// not read; and for a list that names a list.
absl::StatusOr<DataFiles> ListDataFiles(const std::string& path, const DataFilesOptions& options);

}  // namespace shale
