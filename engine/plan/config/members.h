// Carries values between the fields of a spec and the members of the structs that hold them (engine/plan/config/job.h,
// engine/compile/model/config.h). VisitMembers, which is generated from the files in proto/job, says which member is
// whose.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/plan/config/fields.h"
#include "engine/plan/config/job.h"
#include "engine/plan/config/job_members.h"
#include "engine/plan/config/spec_values.h"
#include "google/protobuf/message.h"

namespace shale {

// Sets the members whose fields a message gives. The others keep their values.
//
//   MemberReader reader(spec);
//   VisitMembers(config, reader);
class MemberReader {
 public:
  explicit MemberReader(const google::protobuf::Message& from) : from_(from), reflection_(*from.GetReflection()) {}

  template <typename Member>
  void operator()(const char* name, Member& member, const Member&) {
    const Field field = from_.GetDescriptor()->FindFieldByName(name);
    if (Gives(from_, *field)) Read(field, member);
  }

 private:
  using Field = const google::protobuf::FieldDescriptor*;

  void Read(Field field, bool& member) { member = reflection_.GetBool(from_, field); }
  void Read(Field field, int64_t& member) { member = reflection_.GetInt64(from_, field); }
  void Read(Field field, uint64_t& member) { member = reflection_.GetUInt64(from_, field); }
  void Read(Field field, double& member) { member = reflection_.GetDouble(from_, field); }
  void Read(Field field, std::string& member) { member = reflection_.GetString(from_, field); }
  void Read(Field field, std::vector<std::string>& member) {
    member.clear();
    ForEachText(field, [&](const std::string& text) { member.push_back(text); });
  }
  void Read(Field field, std::vector<MixedData>& member) {
    ForEachText(field, [&](const std::string& text) { member.push_back(MixedDataFromText(text)); });
  }
  void Read(Field field, std::vector<EvaluationSource>& member) {
    ForEachText(field, [&](const std::string& text) { member.push_back(EvaluationSourceFromText(text)); });
  }
  void Read(Field field, StateOffload& member) {
    for (int i = 0; i < reflection_.FieldSize(from_, field); ++i) {
      const int part = reflection_.GetRepeatedEnumValue(from_, field, i);
      member.moments |= part == proto::MemorySpec::MOMENTS;
      member.masters |= part == proto::MemorySpec::MASTERS;
      member.parameters |= part == proto::MemorySpec::PARAMETERS;
    }
  }
  template <typename Config>
  void Read(Field field, std::optional<Config>& member) {
    Read(field, member.emplace());
  }
  void Read(Field field, std::vector<OptimizerGroupConfig>& member) {
    for (int i = 0; i < reflection_.FieldSize(from_, field); ++i) {
      MemberReader inside(reflection_.GetRepeatedMessage(from_, field, i));
      VisitMembers(member.emplace_back(), inside);
    }
  }
  template <typename Member>
  void Read(Field field, Member& member) {
    if constexpr (std::is_enum_v<Member>) {
      member = static_cast<Member>(reflection_.GetEnumValue(from_, field) - kNumberOfFirst<Member>);
    } else {
      MemberReader inside(reflection_.GetMessage(from_, field));
      VisitMembers(member, inside);
    }
  }

  template <typename Use>
  void ForEachText(Field field, const Use& use) {
    for (int i = 0; i < reflection_.FieldSize(from_, field); ++i) {
      use(reflection_.GetRepeatedString(from_, field, i));
    }
  }

  const google::protobuf::Message& from_;
  const google::protobuf::Reflection& reflection_;
};

// Sets all fields of a message, but for those that a resolved job leaves out (FieldFacts::printed_if_changed).
class MemberWriter {
 public:
  explicit MemberWriter(google::protobuf::Message* to) : to_(to), reflection_(*to->GetReflection()) {}

  template <typename Member>
  void operator()(const char* name, const Member& member, const Member& initial) {
    const Field field = to_->GetDescriptor()->FindFieldByName(name);
    if (FactsOf(*field).printed_if_changed() && member == initial) return;
    Write(field, member);
  }

 private:
  using Field = const google::protobuf::FieldDescriptor*;

  void Write(Field field, bool member) { reflection_.SetBool(to_, field, member); }
  void Write(Field field, int64_t member) { reflection_.SetInt64(to_, field, member); }
  void Write(Field field, uint64_t member) { reflection_.SetUInt64(to_, field, member); }
  void Write(Field field, double member) { reflection_.SetDouble(to_, field, member); }
  void Write(Field field, const std::string& member) { reflection_.SetString(to_, field, member); }
  void Write(Field field, const std::vector<std::string>& member) {
    for (const std::string& text : member) reflection_.AddString(to_, field, text);
  }
  void Write(Field field, const std::vector<MixedData>& member) {
    for (const MixedData& mixed : member) reflection_.AddString(to_, field, ToText(mixed));
  }
  void Write(Field field, const std::vector<EvaluationSource>& member) {
    for (const EvaluationSource& source : member) reflection_.AddString(to_, field, ToText(source));
  }
  void Write(Field field, const StateOffload& member) {
    if (member.moments) reflection_.AddEnumValue(to_, field, proto::MemorySpec::MOMENTS);
    if (member.masters) reflection_.AddEnumValue(to_, field, proto::MemorySpec::MASTERS);
    if (member.parameters) reflection_.AddEnumValue(to_, field, proto::MemorySpec::PARAMETERS);
  }
  template <typename Config>
  void Write(Field field, const std::optional<Config>& member) {
    if (member) Write(field, *member);
  }
  void Write(Field field, const std::vector<OptimizerGroupConfig>& member) {
    for (const OptimizerGroupConfig& group : member) {
      MemberWriter inside(reflection_.AddMessage(to_, field));
      VisitMembers(group, inside);
    }
  }
  template <typename Member>
  void Write(Field field, const Member& member) {
    if constexpr (std::is_enum_v<Member>) {
      reflection_.SetEnumValue(to_, field, static_cast<int>(member) + kNumberOfFirst<Member>);
    } else {
      MemberWriter inside(reflection_.MutableMessage(to_, field));
      VisitMembers(member, inside);
    }
  }

  google::protobuf::Message* const to_;
  const google::protobuf::Reflection& reflection_;
};

// Takes the member of one field from another struct of the same type.
//
//   MemberTaker taker("sharding.prefetch");
//   VisitMembers(job, other, taker);
class MemberTaker {
 public:
  explicit MemberTaker(absl::string_view path) : names_(absl::StrSplit(path, absl::MaxSplits('.', 1))) {}

  bool found() const { return found_; }

  template <typename Member>
  void operator()(const char* name, Member& member, const Member& other) {
    if (names_.front() != name) return;
    if (names_.size() == 1) {
      member = other;
      found_ = true;
    } else if constexpr (requires { VisitMembers(member, other, *this); }) {
      MemberTaker inside(names_.back());
      VisitMembers(member, other, inside);
      found_ = inside.found();
    }
  }

 private:
  const std::vector<absl::string_view> names_;  // The first of the path, and what comes after it.
  bool found_ = false;
};

}  // namespace shale
