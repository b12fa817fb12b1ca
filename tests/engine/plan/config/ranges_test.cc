#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/plan/config/fields.h"
#include "engine/plan/config/job_from_spec.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

struct Number {
  std::string path;
  FieldDescriptor::CppType type;
};

void Collect(const Descriptor& type, const std::string& prefix, std::vector<Number>& numbers) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string path = absl::StrCat(prefix, field.name());
    if (field.message_type() != nullptr) Collect(*field.message_type(), path + ".", numbers);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 || field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      numbers.push_back({path, field.cpp_type()});
    }
  }
}

std::vector<Number> Numbers() {
  std::vector<Number> numbers;
  Collect(*proto::Job::descriptor(), "", numbers);
  return numbers;
}

// Sets `path` to `value` in a job that has the field. Returns the error about its range ("found ..."), or "" if there
// is none. Ignores contradictions with other fields.
std::string RangeError(const std::string& path, const std::string& value) {
  const bool is_mlp = path.find(".mlp.") != std::string::npos;
  std::string set = path + "=" + value, shown = path;
  constexpr absl::string_view kGroups = "optimizer.groups.";  // A list of messages.
  if (absl::StartsWith(path, kGroups)) {
    const std::string name = path.substr(kGroups.size());
    set = absl::StrCat("optimizer.groups={", name, ": ", value, "}");
    shown = absl::StrCat("optimizer.groups[0].", name);
  }
  const std::string error = ParseError(is_mlp ? kMlpJob : kDecoderJob, {set});
  const std::string expected = absl::StrCat("--set: ", shown, ": found ");
  const size_t at = error.find(expected);
  const size_t allowed = error.find("allowed: " + RangeText(*FindField(path)));
  return at == std::string::npos || allowed == std::string::npos ? "" : error.substr(at);
}

TEST(Ranges, EveryNumberHasOne) {
  ASSERT_GE(Numbers().size(), 50);
  for (const Number& number : Numbers()) {
    const proto::FieldFacts& facts = FactsOf(*FindField(number.path));
    EXPECT_TRUE(facts.has_min() && facts.has_max()) << number.path;
    EXPECT_LT(facts.min(), facts.max()) << number.path;
    if (number.type != FieldDescriptor::CPPTYPE_INT64) continue;
    EXPECT_EQ(facts.min(), static_cast<double>(static_cast<int64_t>(facts.min()))) << number.path;
    EXPECT_EQ(facts.max(), static_cast<double>(static_cast<int64_t>(facts.max()))) << number.path;
  }
}

TEST(Ranges, EndsAreInsideAndWhatFollowsThemOutside) {
  for (const Number& number : Numbers()) {
    SCOPED_TRACE(number.path);
    const proto::FieldFacts& facts = FactsOf(*FindField(number.path));
    if (number.type == FieldDescriptor::CPPTYPE_INT64) {
      const int64_t min = static_cast<int64_t>(facts.min()), max = static_cast<int64_t>(facts.max());
      EXPECT_EQ(RangeError(number.path, absl::StrCat(min)), "");
      EXPECT_EQ(RangeError(number.path, absl::StrCat(max)), "");
      EXPECT_NE(RangeError(number.path, absl::StrCat(min - 1)), "");
      EXPECT_NE(RangeError(number.path, absl::StrCat(max + 1)), "");
      EXPECT_NE(RangeError(number.path, "9223372036854775807"), "");
      EXPECT_NE(RangeError(number.path, "-9223372036854775807"), "");
    } else {
      EXPECT_EQ(RangeError(number.path, NumberText(facts.min())), "");
      EXPECT_EQ(RangeError(number.path, NumberText(facts.max())), "");
      EXPECT_NE(RangeError(number.path, NumberText(std::nextafter(facts.min(), -1e300))), "");
      EXPECT_NE(RangeError(number.path, NumberText(std::nextafter(facts.max(), 1e300))), "");
      // A float would take it for 0.
      if (facts.or_zero()) {
        EXPECT_EQ(RangeError(number.path, "0"), "");
        EXPECT_NE(RangeError(number.path, "1e-50"), "");
      }
    }
  }
}

TEST(Ranges, NoRealMayBeNanOrInfinite) {
  for (const Number& number : Numbers()) {
    if (number.type != FieldDescriptor::CPPTYPE_DOUBLE) continue;
    for (const char* value : {"nan", "-nan", "inf", "-inf", "Infinity", "1e999", "-1e999"}) {
      EXPECT_NE(RangeError(number.path, value), "") << number.path << "=" << value;
    }
  }
}

TEST(Ranges, NegativeZeroIsZero) {
  EXPECT_EQ(SetError({"optimizer.weight_decay=-0"}), "");
  EXPECT_EQ(SetError({"optimizer.weight_decay=-0.0"}), "");
  EXPECT_EQ(SetError({"optimizer.epsilon=-0.0"}), "--set: optimizer.epsilon: found -0; allowed: 1e-30 to 1");
}

TEST(Ranges, RequiredNumbersAreAskedFor) {
  const std::string message = ParseError("model { decoder { } }");
  for (const char* path : {"model.decoder.width", "model.decoder.layers", "model.decoder.heads", "batch.global_batch",
                           "batch.sequence_length"}) {
    EXPECT_NE(
        message.find(absl::StrCat(path, ": missing, and there is no default; allowed: ", RangeText(*FindField(path)))),
        std::string::npos)
        << path;
  }
}

TEST(Ranges, NumbersAreShownInTheFewestDigitsThatReadBack) {
  EXPECT_EQ(NumberText(0.1), "0.1");
  EXPECT_EQ(NumberText(1e-30), "1e-30");
  EXPECT_EQ(NumberText(0.30000000000000004), "0.30000000000000004");
  EXPECT_EQ(NumberText(std::numeric_limits<double>::infinity()), "inf");
}

}  // namespace
}  // namespace shale
