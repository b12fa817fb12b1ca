// generate_fields: writes what engine/plan/config takes from the text of proto/job.proto and of the files in proto/job.
//
//   generate_fields job.descriptors job_comments.cc job_members.h
//
// job_comments.cc holds the comments, for --help and the manual's page of fields. job_members.h says which member of a
// struct holds which field: a function VisitMembers for each message that names a struct. A field without a member does
// not compile, so that no list of fields must be kept beside the proto.
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.pb.h"
#include "kernels/check.h"
#include "proto/field.pb.h"

namespace shale {
namespace {

using google::protobuf::DescriptorProto;
using google::protobuf::EnumDescriptorProto;
using google::protobuf::FileDescriptorProto;

// What SourceCodeInfo calls the parts of a file: the numbers of the fields that hold them.
constexpr int kMessages = FileDescriptorProto::kMessageTypeFieldNumber;
constexpr int kNestedEnums = DescriptorProto::kEnumTypeFieldNumber;
constexpr int kFields = DescriptorProto::kFieldFieldNumber;
constexpr int kValues = EnumDescriptorProto::kValueFieldNumber;

using Path = std::vector<int>;

// Returns the comment as one line.
std::string OneLine(const std::string& comment) {
  std::string text;
  for (absl::string_view word : absl::StrSplit(comment, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    absl::StrAppend(&text, text.empty() ? "" : " ", word);
  }
  return text;
}

std::map<Path, std::string> CommentsByPath(const FileDescriptorProto& file) {
  std::map<Path, std::string> comments;
  for (const auto& location : file.source_code_info().location()) {
    const std::string& comment =
        location.has_leading_comments() ? location.leading_comments() : location.trailing_comments();
    comments[Path(location.path().begin(), location.path().end())] = OneLine(comment);
  }
  return comments;
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

// Returns a row of the table of comments for whatever has one.
std::string CommentRows(const FileDescriptorProto& file) {
  const std::map<Path, std::string> comments = CommentsByPath(file);
  std::string rows;
  const auto row = [&](const std::string& name, const Path& path) {
    const auto found = comments.find(path);
    if (found == comments.end() || found->second.empty()) return;
    absl::StrAppend(&rows, "      {", Quoted(name), ", ", Quoted(found->second), "},\n");
  };
  for (int m = 0; m < file.message_type_size(); ++m) {
    const DescriptorProto& message = file.message_type(m);
    const std::string name = absl::StrCat(file.package(), ".", message.name());
    row(name, {kMessages, m});
    for (int f = 0; f < message.field_size(); ++f) {
      row(absl::StrCat(name, ".", message.field(f).name()), {kMessages, m, kFields, f});
    }
    for (int e = 0; e < message.enum_type_size(); ++e) {
      const EnumDescriptorProto& type = message.enum_type(e);
      row(absl::StrCat(name, ".", type.name()), {kMessages, m, kNestedEnums, e});
      for (int v = 0; v < type.value_size(); ++v) {
        // The name of a value stands beside that of its enum, not in it.
        row(absl::StrCat(name, ".", type.value(v).name()), {kMessages, m, kNestedEnums, e, kValues, v});
      }
    }
  }
  return rows;
}

std::string CommentsSource(const std::vector<FileDescriptorProto>& files) {
  std::string rows;
  for (const FileDescriptorProto& file : files) rows += CommentRows(file);
  return absl::StrCat(
      "#include <map>\n\n#include \"engine/plan/config/fields.h\"\n\nnamespace shale {\n\n"
      "absl::string_view CommentOf(absl::string_view full_name) {\n"
      "  static const auto& comments = *new std::map<absl::string_view, absl::string_view>{\n",
      rows,
      "  };\n  const auto found = comments.find(full_name);\n"
      "  return found == comments.end() ? absl::string_view() : found->second;\n}\n\n}  // namespace shale\n");
}

// Returns VisitMembers for each message that names a struct.
std::string Visitors(const FileDescriptorProto& file) {
  std::string text;
  for (const DescriptorProto& message : file.message_type()) {
    const std::string& config = message.options().GetExtension(proto::config);
    if (config.empty()) continue;
    absl::StrAppend(&text, "\ntemplate <typename Config, typename Visitor>\n  requires std::is_same_v<",
                    "std::remove_const_t<Config>, ", config, ">\nvoid VisitMembers(Config& config, const ", config,
                    "& other, Visitor& visit) {\n");
    for (const auto& field : message.field()) {
      const std::string& named = field.options().GetExtension(proto::facts).member();
      if (named == "-") continue;
      const std::string& member = named.empty() ? field.name() : named;
      absl::StrAppend(&text, "  visit(\"", field.name(), "\", config.", member, ", other.", member, ");\n");
    }
    absl::StrAppend(&text, "}\n");
  }
  return text;
}

std::string MembersHeader(const std::vector<FileDescriptorProto>& files) {
  std::string text =
      "// Calls visit(field, member, member of other) for each field of a message that the struct holds: the name of\n"
      "// the field, the member, and that of another struct. Without one, it is that of a new struct.\n"
      "#pragma once\n\n#include <type_traits>\n\n"
      "#include \"engine/plan/config/job.h\"\n#include \"engine/compile/model/config.h\"\n\nnamespace shale {\n";
  for (const FileDescriptorProto& file : files) text += Visitors(file);
  return absl::StrCat(text, "\ntemplate <typename Config, typename Visitor>\n",
                      "void VisitMembers(Config& config, Visitor& visit) {\n",
                      "  VisitMembers(config, std::remove_const_t<Config>(), visit);\n}\n\n}  // namespace shale\n");
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  SHALE_CHECK(argc == 4) << "wanted job.descriptors job_comments.cc job_members.h";
  std::ifstream in(argv[1], std::ios::binary);
  google::protobuf::FileDescriptorSet files;
  SHALE_CHECK(files.ParseFromIstream(&in)) << argv[1] << " holds no descriptors";
  std::vector<google::protobuf::FileDescriptorProto> of_job;  // The others are field.proto and what it imports.
  for (const auto& file : files.file()) {
    if (absl::StartsWith(file.name(), "proto/job")) of_job.push_back(file);
  }
  std::ofstream(argv[2]) << shale::CommentsSource(of_job);
  std::ofstream(argv[3]) << shale::MembersHeader(of_job);
  return 0;
}
