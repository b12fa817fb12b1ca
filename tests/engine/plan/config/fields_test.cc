// Tests laws of every field of a job, whatever it is called: so a new field is tested as soon as a file in proto/job
// has it.
#include "engine/plan/config/fields.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/job.h"
#include "engine/compile/optimizer/optimizer.h"
#include "engine/plan/config/job_from_spec.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string ValueAt(const Message& job, const std::string& path) {
  const Message* message = &job;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(names[i]);
    message = &message->GetReflection()->GetMessage(*message, field);
  }
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(names.back());
  if (!field->is_repeated()) return ValueText(*message, *field);
  std::string text;
  for (int i = 0; i < message->GetReflection()->FieldSize(*message, field); ++i) {
    std::string value;
    google::protobuf::TextFormat::PrintFieldValueToString(*message, field, i, &value);
    absl::StrAppend(&text, value, ";");
  }
  return text;
}

// Returns a value other than `usual`, which a field has that a job leaves out.
std::string ChangedValue(const FieldDescriptor& field, const std::string& usual) {
  const proto::FieldFacts& facts = FactsOf(field);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: return absl::StrCat(static_cast<int64_t>((facts.min() + facts.max()) / 2));
    case FieldDescriptor::CPPTYPE_DOUBLE: return NumberText((facts.min() + facts.max()) / 2);
    case FieldDescriptor::CPPTYPE_UINT64: return "77";
    case FieldDescriptor::CPPTYPE_BOOL: return usual == "true" ? "false" : "true";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto& type = *field.enum_type();
      const std::string last = type.value(type.value_count() - 1)->name();
      return usual == last ? type.value(1)->name() : last;
    }
    default: return "250 /x";  // Also an entry of data.mix, and of data.evaluation_sources.
  }
}

TEST(Fields, WhatAJobGivesComesBack) {
  const std::set<std::string> decide_others = {"model.decoder.family", "optimizer.state"};
  const proto::Job usual = SpecOf(JobFromSpec(SpecWith({})));
  const std::vector<std::string> paths = AllFields();
  ASSERT_GT(paths.size(), 130);
  for (const std::string& path : paths) {
    if (decide_others.count(path) > 0) continue;
    const FieldDescriptor& field = *FindField(path);
    const std::string value = ChangedValue(field, ValueAt(usual, path));
    std::vector<std::string> given = {path + "=" + value};
    // Without a window there are no layers that this one could describe.
    if (path == "model.decoder.window_rope_theta") given.push_back("model.decoder.attention_window=16");
    const proto::Job spec = SpecWith(given);
    const proto::Job back = SpecOf(JobFromSpec(spec));
    EXPECT_EQ(ValueAt(back, path), ValueAt(spec, path)) << path << "=" << value;
    EXPECT_NE(ValueAt(back, path), ValueAt(usual, path)) << path << "=" << value;
  }
}

TEST(Fields, HaveACommentAndADefaultUnlessTheyAreRequired) {
  const std::set<std::string> without_default = {"lr_schedule.steps", "lr_schedule.epochs", "data.path",
                                                 "optimizer.base_batch", "telemetry.peak_flops_measured"};
  for (const std::string& path : AllFields(/*in_lists=*/true)) {
    const proto::FieldFacts& facts = FactsOf(*FindField(path));
    const FieldDescriptor& field = *FindField(path);
    const bool of_type = field.enum_type() != nullptr && !CommentOf(field.enum_type()->full_name()).empty();
    EXPECT_TRUE(of_type || !CommentOf(field.full_name()).empty()) << path;
    if (path.find("model.custom.") == 0) continue;  // A program gives all of them.
    const bool has_default = facts.required() || !facts.default_().empty() || !facts.defaults_to().empty();
    EXPECT_EQ(has_default, without_default.count(path) == 0) << path;
  }
}

TEST(Fields, ConditionsNameValuesThatExist) {
  for (const std::string& path : AllFields()) {
    for (const proto::Condition& condition : FactsOf(*FindField(path)).only_with()) {
      const FieldDescriptor* other = FindField(condition.field());
      ASSERT_NE(other, nullptr) << path << ": " << condition.field();
      for (const std::string& value : condition.values()) {
        ASSERT_NE(other->enum_type(), nullptr) << path;
        EXPECT_NE(other->enum_type()->FindValueByName(value), nullptr) << path << ": " << value;
      }
    }
  }
}

// Returns whether the help of value `value` of an enum field names `other`, a field, or one of its values: "FULL_SHARD
// only" tells of the others, too.
bool Names(const std::string& path, const std::string& value, const std::string& other) {
  const FieldDescriptor& field = *FindField(path);
  for (const proto::Condition& condition : FactsOf(field).only_with()) {
    if (condition.field() == other) return true;
  }
  const std::string text = absl::StrCat(CommentOf(field.full_name()), " ", CommentOf(field.enum_type()->full_name()),
                                        " ", CommentOf(field.enum_type()->FindValueByName(value)->full_name()));
  const std::set<std::string> words = absl::StrSplit(text, absl::ByAnyChar(" .,;:()"), absl::SkipEmpty());
  const auto& values = *FindField(other)->enum_type();
  for (int i = 1; i < values.value_count(); ++i) {
    if (words.count(values.value(i)->name()) > 0) return true;
  }
  return false;
}

// Regression: the comment of device HOST said that it goes with every rule, and a rule between fields refuses
// ADAFACTOR.
TEST(Fields, CommentsNameTheValuesThatAreRefusedBeside) {
  struct Given {
    std::string path, value;
    std::string text() const { return absl::StrCat(path, "=", value); }
  };
  const std::set<std::string> sections = {"sharding", "precision", "memory", "optimizer", "runtime"};
  std::vector<Given> all;
  for (const std::string& path : AllFields()) {
    const auto* type = FindField(path)->enum_type();
    if (type == nullptr || sections.count(path.substr(0, path.find('.'))) == 0) continue;
    for (int i = 1; i < type->value_count(); ++i) all.push_back({path, type->value(i)->name()});
  }
  int refused = 0;
  const std::vector<std::string> on_gpu = {"runtime.device=CUDA", "optimizer.non_finite=SKIP",
                                           "optimizer.clipping=PER_UNIT"};
  for (const std::vector<std::string>& base : {std::vector<std::string>(), on_gpu}) {
    const auto is_fine = [&](const std::vector<std::string>& more) {
      std::vector<std::string> values = base;
      values.insert(values.end(), more.begin(), more.end());
      return SetError(values).empty();
    };
    std::vector<Given> good;
    std::copy_if(all.begin(), all.end(), std::back_inserter(good), [&](const Given& a) { return is_fine({a.text()}); });
    for (const Given& a : good) {
      for (const Given& b : good) {
        if (b.path <= a.path || is_fine({a.text(), b.text()})) continue;
        ++refused;
        EXPECT_TRUE(Names(a.path, a.value, b.path) || Names(b.path, b.value, a.path)) << a.text() << " " << b.text();
      }
    }
  }
  EXPECT_GT(refused, 10);
}

// An optimizer declares what it reads, and the fields say who reads them.
TEST(Fields, OptimizersReadWhatTheFieldsSay) {
  for (const std::string& path : AllFields()) {
    const FieldDescriptor& field = *FindField(path);
    for (const proto::Condition& condition : FactsOf(field).only_with()) {
      if (condition.field() != "optimizer.rule") continue;
      std::vector<std::string> readers;
      for (const OptimizerEntry& entry : Optimizers()) {
        if (entry.Reads(field.name())) readers.emplace_back(entry.name.data(), entry.name.size());
      }
      EXPECT_THAT(condition.values(), ::testing::ElementsAreArray(readers)) << path;
    }
  }
  for (const OptimizerEntry& entry : Optimizers()) {
    for (const absl::string_view name : entry.fields) {
      const FieldDescriptor* field = FindField(absl::StrCat("optimizer.", name));
      ASSERT_NE(field, nullptr) << name;
      // Moments are those of groups too, so that a rule in C++ says who reads them.
      EXPECT_EQ(FactsOf(*field).only_with_size(), name == "moments" ? 0 : 1) << name;
    }
  }
}

TEST(FieldHelp, ExplainsSectionsAndFields) {
  EXPECT_EQ(*FieldHelp("batch"),
            "batch: The number of sequences in a step. There are K = ceil(global_batch / (micro_batch x ranks))\n"
            "accumulation steps.\n\n"
            "  global_batch                Sequences in one optimizer step, over all ranks. 1 to 2^40 sequences.\n"
            "                              Required.\n"
            "  micro_batch                 Sequences that one rank runs at once. 1 to 2^20 sequences. Default: 1.\n"
            "  sequence_length             Tokens in one sequence. 1 to 2^24 tokens. Required.\n");
  EXPECT_EQ(*FieldHelp("batch."), *FieldHelp("batch"));
  const std::string strategy = *FieldHelp("sharding.strategy");
  EXPECT_THAT(strategy, ::testing::HasSubstr("sharding.strategy: What is sharded.\n\n"
                                             "DDP, ZERO1, ZERO2, FULL_SHARD. Default: FULL_SHARD.\n\n"
                                             "Each strategy shards what the ones before it shard.\n\n"
                                             "  DDP                         Replicates everything"));
  EXPECT_THAT(*FieldHelp("runtime.nccl_windows"), ::testing::HasSubstr("Only with runtime.device CUDA."));
  EXPECT_THAT(*FieldHelp("optimizer"), ::testing::HasSubstr("Only with optimizer.rule SGD or MUON."));
  EXPECT_THAT(*FieldHelp("job"), ::testing::HasSubstr("  data                        The source of the tokens, and"));
  EXPECT_EQ(ErrorOf(FieldHelp("batch.micro_batches").status()),
            "batch.micro_batches: no such field; allowed: global_batch, micro_batch, sequence_length; did you mean "
            "micro_batch?");
  EXPECT_EQ(ErrorOf(FieldHelp("name.x").status()), "name.x: name is a value and has no fields");
  EXPECT_THAT(ErrorOf(FieldHelp("").status()), ::testing::HasSubstr("allowed: name, model, data"));
}

// Returns the comments that are printed together for each path of a field or message: those of field and type. Adds
// those of the values of enums to `values`.
std::map<std::string, std::vector<std::string>> CommentsByPath(std::map<std::string, std::string>& values) {
  std::map<std::string, std::vector<std::string>> comments;
  std::set<std::string> paths;
  for (const std::string& path : AllFields(/*in_lists=*/true)) {
    for (size_t end = path.size(); end != std::string::npos && end > 0; end = path.rfind('.', end - 1)) {
      paths.insert(path.substr(0, end));
    }
  }
  for (const std::string& path : paths) {
    const FieldDescriptor& field = *FindField(path);
    std::vector<std::string> all = {std::string(CommentOf(field.full_name()))};
    if (field.message_type() != nullptr) all.emplace_back(CommentOf(field.message_type()->full_name()));
    if (const auto* type = field.enum_type(); type != nullptr) {
      all.emplace_back(CommentOf(type->full_name()));
      for (int i = 1; i < type->value_count(); ++i) {
        values[absl::StrCat(path, " ", type->value(i)->name())] = std::string(CommentOf(type->value(i)->full_name()));
      }
    }
    all.erase(std::remove(all.begin(), all.end(), ""), all.end());
    comments[path] = all;
  }
  return comments;
}

std::set<std::string> WordsOf(absl::string_view sentence) {
  std::set<std::string> words;
  for (absl::string_view word : absl::StrSplit(sentence, absl::ByAnyChar(" .,;:()\"'"), absl::SkipEmpty())) {
    words.insert(absl::AsciiStrToLower(word));
  }
  return words;
}

// Regression: the help of data.loss_on gave the second half of a sentence to the next value: protoc ends a comment
// behind a line with this line.
TEST(FieldHelp, IsMadeOfWholeSentences) {
  std::map<std::string, std::string> texts;
  for (const auto& [path, comments] : CommentsByPath(texts)) texts[path] = absl::StrJoin(comments, " ");
  EXPECT_GT(texts.size(), 200);
  for (const auto& [path, text] : texts) {
    if (text.empty()) continue;  // A value whose name says it all.
    EXPECT_EQ(text.back(), '.') << path << ": " << text;
    const std::string first = text.substr(0, text.find(' '));
    // "fp32", "beta1" and "oneDNN" are names.
    const bool is_name = std::any_of(first.begin(), first.end(), [](char c) { return !absl::ascii_islower(c); });
    EXPECT_TRUE(is_name) << path << ": " << text;
  }
}

// Regression: the help of telemetry.sinks said its first sentence twice.
TEST(FieldHelp, SaysNothingTwice) {
  std::map<std::string, std::string> values;
  for (const auto& [path, comments] : CommentsByPath(values)) {
    const std::vector<std::string> sentences = absl::StrSplit(absl::StrJoin(comments, " "), ". ");
    for (size_t i = 0; i < sentences.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        const std::set<std::string> a = WordsOf(sentences[k]), b = WordsOf(sentences[i]);
        const auto shared = std::count_if(a.begin(), a.end(), [&](const std::string& word) { return b.count(word); });
        const auto fewer = static_cast<double>(std::min(a.size(), b.size()));
        EXPECT_LE(static_cast<double>(shared), 0.7 * fewer) << path << ": " << sentences[k] << " / " << sentences[i];
      }
    }
  }
}

TEST(FieldHelp, ThePagesOfTheManualAreWhatIsPrinted) {
  for (const auto& [name, printed] : FieldsPages()) {
    std::ifstream file("tools/manual/" + name);
    const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_TRUE(page == printed) << name << ": run  bazel run //tools:print_fields -- $PWD/tools/manual";
    EXPECT_LT(std::count(page.begin(), page.end(), '\n'), 250) << name;
  }
}

}  // namespace
}  // namespace shale
