// Tests that a job has the defaults that its fields name: in their facts, in words, and beside the value 0 of an enum.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/plan/config/fields.h"
#include "engine/plan/config/job_from_spec.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

TEST(Defaults, ChangeNothingIfTheyAreGiven) {
  int defaults = 0;
  for (const std::string& path : AllFields()) {
    const proto::FieldFacts& facts = FactsOf(*FindField(path));
    EXPECT_FALSE(!facts.default_().empty() && (!facts.defaults_to().empty() || facts.required())) << path;
    if (facts.default_().empty()) continue;
    ++defaults;
    // Chooses the kind of model that the field belongs to, and what the field goes with.
    std::vector<std::string> values;
    if (path.find(".mlp.") != std::string::npos) values.push_back("model.mlp={}");
    if (path.find(".custom.") != std::string::npos) values.push_back("model.custom={}");
    if (path.find(".adapter.") != std::string::npos) values.push_back("model.adapter={}");
    if (path.find(".rope_scaling.") != std::string::npos) values.push_back("model.decoder.rope_scaling={}");
    for (const proto::Condition& condition : facts.only_with()) {
      if (!condition.values().empty()) values.push_back(condition.field() + "=" + condition.values(0));
    }
    const Job left_out = JobFromSpec(SpecWith(values));
    values.push_back(path + "=" + facts.default_());
    EXPECT_EQ(JobFromSpec(SpecWith(values)), left_out) << values.back();
  }
  EXPECT_GT(defaults, 60);
}

// Returns kDecoderJob with one element in the list at `path` of messages, in which `field` has `value` if it has a
// name.
Job JobWithElement(const std::string& path, const std::string& field, const std::string& value) {
  proto::Job spec = SpecWith({});
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  std::string text;
  for (const std::string& name : names) absl::StrAppend(&text, name, " { ");
  if (!field.empty()) absl::StrAppend(&text, field, ": ", value);
  for (size_t i = 0; i < names.size(); ++i) text += " }";
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &spec)) << text;
  return JobFromSpec(spec);
}

TEST(Defaults, ChangeNothingIfTheyAreGivenInAList) {
  const std::vector<std::string> elsewhere = AllFields();
  const std::set<std::string> not_in_lists(elsewhere.begin(), elsewhere.end());
  int defaults = 0;
  for (const std::string& path : AllFields(/*in_lists=*/true)) {
    const std::string& value = FactsOf(*FindField(path)).default_();
    if (value.empty() || not_in_lists.count(path) > 0) continue;
    ++defaults;
    const std::string list = path.substr(0, path.rfind('.')), field = path.substr(path.rfind('.') + 1);
    EXPECT_EQ(JobWithElement(list, field, value), JobWithElement(list, "", "")) << path << ": " << value;
  }
  EXPECT_GT(defaults, 0);
}

// Returns the names of the values of an enum that a job may have.
std::vector<std::string> NamesOf(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 1; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return names;
}

// Returns the default of each name, as a text says it: "0.9 (ADAFACTOR: 0)", or "true for GPT2 and QWEN2, else false".
// Empty if the text says nothing about any name. Leaves out what is more than a word: "else every layer".
std::map<std::string, std::string> DefaultsIn(absl::string_view text, const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  const std::vector<std::string> words =
      absl::StrSplit(absl::StripSuffix(text, "."), absl::ByAnyChar(" ,():"), absl::SkipEmpty());
  const size_t otherwise = std::find(words.begin(), words.end(), "else") - words.begin();
  std::map<std::string, std::string> found;
  std::string value;                 // Before its names: of "true for GPT2".
  std::vector<std::string> waiting;  // Before their value: of "ADAFACTOR: 0".
  for (size_t i = 0; i < otherwise && i < words.size(); ++i) {
    if (words[i] == "for" && i > 0) {
      value = words[i - 1];
    } else if (known.count(words[i]) > 0 && !value.empty()) {
      found[words[i]] = value;
    } else if (known.count(words[i]) > 0) {
      waiting.push_back(words[i]);
    } else {
      for (const std::string& name : waiting) found[name] = words[i];
      waiting.clear();
    }
  }
  if (found.empty()) return found;
  if (otherwise + 2 == words.size()) value = words.back();
  if (otherwise + 2 < words.size()) value.clear();
  if (otherwise == words.size()) value = words[0];
  for (const std::string& name : names) {
    if (!value.empty()) found.try_emplace(name, value);
  }
  return found;
}

TEST(Defaults, AreFoundInTheirTexts) {
  using Found = std::map<std::string, std::string>;
  const std::vector<std::string> names = {"A", "B", "C"};
  EXPECT_EQ(DefaultsIn("0.9 (C: 0)", names), (Found{{"A", "0.9"}, {"B", "0.9"}, {"C", "0"}}));
  EXPECT_EQ(DefaultsIn("3e-4 (A, B: 0.1, C: 1)", names), (Found{{"A", "0.1"}, {"B", "0.1"}, {"C", "1"}}));
  EXPECT_EQ(DefaultsIn("x for A and B, else y", names), (Found{{"A", "x"}, {"B", "x"}, {"C", "y"}}));
  EXPECT_EQ(DefaultsIn("X for A, Y for B, else Z.", names), (Found{{"A", "X"}, {"B", "Y"}, {"C", "Z"}}));
  EXPECT_EQ(DefaultsIn("X for A, else all there are", names), (Found{{"A", "X"}}));
  EXPECT_EQ(DefaultsIn("none (all)", names), Found());
}

// Returns whether a field can have the value: "heads" is none of kv_heads.
bool IsValueOf(const FieldDescriptor& field, const std::string& value) {
  double number;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_DOUBLE: return absl::SimpleAtod(value, &number);
    default: return true;
  }
}

// Regression: nothing held the defaults of rules and families that the texts of fields repeat, so that they could
// differ from those of kernels/update_rules.h and of engine/plan/config/decoder_spec.cc.
TEST(Defaults, OfFamiliesAndRulesAreThoseOfTheTexts) {
  std::map<std::string, int> checked;  // By what the defaults depend on.
  for (const std::string& path : AllFields()) {
    const FieldDescriptor& field = *FindField(path);
    const std::string by = absl::StartsWith(path, "model.decoder.") ? "model.decoder.family" : "optimizer.rule";
    if (path == by || (by == "optimizer.rule" && !absl::StartsWith(path, "optimizer."))) continue;
    const bool by_family = FactsOf(field).defaults_to() == "by family";
    const absl::string_view text =
        by_family ? CommentOf(field.enum_type()->value(0)->full_name()) : FactsOf(field).defaults_to();
    const std::map<std::string, std::string> defaults = DefaultsIn(text, NamesOf(*FindField(by)->enum_type()));
    EXPECT_TRUE(!by_family || !defaults.empty()) << path << ": " << text;
    for (const auto& [name, value] : defaults) {
      bool is_read = true;
      for (const proto::Condition& condition : FactsOf(field).only_with()) {
        const auto& readers = condition.values();
        is_read &= condition.field() != by || std::find(readers.begin(), readers.end(), name) != readers.end();
      }
      if (!is_read || !IsValueOf(field, value)) continue;
      ++checked[by];
      const std::string kind = absl::StrCat(by, "=", name), given = absl::StrCat(path, "=", value);
      EXPECT_EQ(JobFromSpec(SpecWith({kind, given})), JobFromSpec(SpecWith({kind}))) << kind << " " << given;
    }
  }
  EXPECT_GE(checked["model.decoder.family"], 100);
  EXPECT_GE(checked["optimizer.rule"], 15);
}

// The comment beside the value 0 of an enum names the default of a field that holds it.
TEST(Defaults, OfEnumsStandBesideTheirValueZero) {
  // Sources of a folder differ in their formats, and a list has no default.
  const std::set<std::string> say_more = {"shale.proto.DataSpec.Format", "shale.proto.MemorySpec.StatePart"};
  std::map<const EnumDescriptor*, std::set<std::string>> defaults;
  for (const std::string& path : AllFields(/*in_lists=*/true)) {
    const FieldDescriptor& field = *FindField(path);
    if (field.enum_type() == nullptr) continue;
    const proto::FieldFacts& facts = FactsOf(field);
    std::set<std::string>& texts = defaults[field.enum_type()];
    texts.insert(facts.default_());
    // "FP32; BF16 with state LEAN" names the usual default first.
    texts.insert(facts.defaults_to().substr(0, facts.defaults_to().find(';')));
    if (facts.defaults_to() == "by family") {
      texts.insert(std::string(CommentOf(field.enum_type()->value(0)->full_name())));  // The test above holds it.
    }
  }
  EXPECT_GT(defaults.size(), 30);
  for (const auto& [type, texts] : defaults) {
    if (say_more.count(type->full_name()) > 0) continue;
    const std::string comment(CommentOf(type->value(0)->full_name()));
    EXPECT_FALSE(comment.empty()) << type->full_name();
    EXPECT_TRUE(texts.count(comment) > 0 || texts.count(std::string(absl::StripSuffix(comment, "."))) > 0)
        << type->full_name() << ": " << comment;
  }
}

}  // namespace
}  // namespace shale
