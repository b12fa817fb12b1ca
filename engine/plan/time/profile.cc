#include "engine/plan/time/profile.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/files/io/file.h"
#include "engine/plan/config/errors.h"
#include "engine/plan/config/spec_text.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "google/protobuf/text_format.h"
#include "kernels/check.h"
#include "kernels/hardware_threads.h"

namespace shale {
namespace {

// A profile of 20,000 works has about 4 MiB.
constexpr int64_t kMaxProfileBytes = int64_t{8} << 20;
// Goes up when the same kind of work (engine/plan/time/work.h) begins to mean something else, or a field goes.
constexpr int kMeasuredVersion = 3;

// Returns `text` with what no file name should have replaced.
std::string FileName(absl::string_view text) {
  std::string name;
  for (const char letter : text) name += absl::ascii_isalnum(letter) || letter == '.' ? letter : '_';
  return name;
}

// Appends the fields of `message` that are set, one in a line, and each message of a list in one line.
void AppendFields(const google::protobuf::Message& message, std::string* text) {
  google::protobuf::TextFormat::Printer lines, line;
  line.SetSingleLineMode(true);
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const auto* field : fields) {
    const int count = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string value;
      const auto* const messages = field->message_type();
      (messages == nullptr ? lines : line)
          .PrintFieldValueToString(message, field, field->is_repeated() ? i : -1, &value);
      if (messages != nullptr) value = absl::StrCat("{ ", absl::StripAsciiWhitespace(value), " }");
      absl::StrAppend(text, field->name(), messages == nullptr ? ": " : " ", value, "\n");
    }
  }
}

// Puts each element of `from` in the place of the one in `into` with the same key, or behind the others.
template <class List, class Key>
void MergeList(const List& from, const Key& key, List* into) {
  std::map<std::string, int> places;
  for (int i = 0; i < into->size(); ++i) places[key(into->Get(i))] = i;
  for (const auto& element : from) {
    const auto [place, is_new] = places.emplace(key(element), into->size());
    *(is_new ? into->Add() : into->Mutable(place->second)) = element;
  }
}

}  // namespace

MachineKey KeyOfThisHost(std::string gpu) {
  std::map<std::string, std::string> facts;  // Of the first CPU.
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    facts.emplace(absl::StripAsciiWhitespace(parts.first), absl::StripAsciiWhitespace(parts.second));
  }
  // Virtual machines have names such as "AMD EPYC" for several kinds of processor.
  MachineKey key{.device = "CPU", .processor = facts["model name"], .threads = HardwareThreads()};
  if (key.processor.empty()) key.processor = "unknown CPU";
  for (const char* fact : {"cpu family", "model"}) {
    if (!facts[fact].empty()) absl::StrAppend(&key.processor, ", ", fact, " ", facts[fact]);
  }
  if (!gpu.empty()) key.device = "CUDA", key.processor = std::move(gpu);
  return key;
}

absl::StatusOr<proto::MachineProfile> ParseProfile(absl::string_view text, absl::string_view file) {
  if (static_cast<int64_t>(text.size()) > kMaxProfileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": more than 8 MiB, which no profile of a machine has"));
  }
  if (const size_t at = FindNonText(text); at != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": found byte 0x",
                                                   absl::Hex(static_cast<uint8_t>(text[at]), absl::kZeroPad2), " at ",
                                                   at, "; wanted UTF-8 text without control characters"));
  }
  proto::MachineProfile profile;
  SpecErrors errors{std::string(file)};
  const google::protobuf::Descriptor& type = *proto::MachineProfile::descriptor();
  CheckSpecText(text, type, type, {.name = std::string(file), .prefix = ""}, &errors);
  SHALE_RETURN_IF_ERROR(errors.ToStatus());
  if (!google::protobuf::TextFormat::ParseFromString(std::string(text), &profile)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": is no profile of a machine"));
  }
  CheckProfile(profile, &errors);
  SHALE_RETURN_IF_ERROR(errors.ToStatus());
  return profile;
}

absl::StatusOr<proto::MachineProfile> ReadProfile(const std::string& name_or_path) {
  if (absl::StrContains(name_or_path, "/") || absl::EndsWith(name_or_path, ".textproto")) {
    SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(name_or_path, kMaxProfileBytes));
    return ParseProfile(text, name_or_path);
  }
  for (const CompiledFile& compiled : kCompiledProfiles) {
    if (name_or_path == compiled.name) return ParseProfile(compiled.text, compiled.name);
  }
  const std::vector<std::string> names = ProfileNames();
  const std::string nearest = Nearest(name_or_path, names);
  return absl::NotFoundError(absl::StrCat("no machine ", Quoted(name_or_path), "; there are ",
                                          absl::StrJoin(names, ", "), ", and files that end in .textproto",
                                          nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

std::vector<std::string> ProfileNames() {
  std::vector<std::string> names;
  for (const CompiledFile& compiled : kCompiledProfiles) names.emplace_back(compiled.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string PrintProfile(const proto::MachineProfile& profile) {
  std::string text;
  AppendFields(profile, &text);
  return text;
}

void MergeProfile(const proto::MachineProfile& measured, proto::MachineProfile* profile) {
  proto::MachineProfile merged = *profile;
  MergeList(
      measured.works(),
      [](const proto::MeasuredWork& work) {
        return absl::StrCat(work.kind(), " ", absl::StrJoin(work.sizes(), " "), " ", work.ranks_on_host());
      },
      merged.mutable_works());
  MergeList(
      measured.rates(), [](const proto::KindRate& rate) { return rate.kind(); }, merged.mutable_rates());
  MergeList(
      measured.links(), [](const proto::Link& link) { return absl::StrCat(link.ends()); }, merged.mutable_links());
  proto::MachineProfile numbers = measured;
  numbers.clear_works();
  numbers.clear_rates();
  numbers.clear_links();
  merged.MergeFrom(numbers);
  *profile = std::move(merged);
}

std::string CachedProfilePath(const std::string& cache_folder, const MachineKey& key) {
  return absl::StrCat(cache_folder, "/machines/", FileName(absl::AsciiStrToLower(key.device)), "-",
                      FileName(key.processor), "-threads", key.threads, "-v", kMeasuredVersion, ".textproto");
}

absl::StatusOr<proto::MachineProfile> CachedProfile(const std::string& cache_folder, const MachineKey& key) {
  if (cache_folder.empty()) return absl::NotFoundError("there is no folder of the user's caches");
  const std::string path = CachedProfilePath(cache_folder, key);
  SHALE_ASSIGN_OR_RETURN(proto::MachineProfile profile, ReadProfile(path));
  if (profile.device() == key.device && profile.processor() == key.processor && profile.threads() == key.threads) {
    return profile;
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": is the profile of ", Quoted(profile.processor()), " with ",
                                                 profile.threads(), " threads, not of ", Quoted(key.processor),
                                                 " with ", key.threads, "; remove it and calibrate again"));
}

std::string FoundProfile::Line() const {
  if (remark.empty()) return "";
  return absl::StrCat(profile == nullptr ? "no " : "", "prediction of a step's seconds: ", remark);
}

FoundProfile ProfileOfThisMachine(std::string gpu) {
  const MachineKey key = KeyOfThisHost(std::move(gpu));
  const auto found = [](proto::MachineProfile profile) {
    return std::make_shared<const proto::MachineProfile>(std::move(profile));
  };
  absl::StatusOr<proto::MachineProfile> cached = CachedProfile(UserCacheFolder(), key);
  if (cached.ok()) return {.profile = found(*std::move(cached))};
  std::vector<std::string> remarks;
  if (!absl::IsNotFound(cached.status())) remarks.emplace_back(cached.status().message());
  FoundProfile of_class;
  for (const CompiledFile& compiled : kCompiledProfiles) {
    if (!absl::StrContains(compiled.text, key.processor)) continue;  // Parsing takes a tenth of planning a small job.
    absl::StatusOr<proto::MachineProfile> profile = ParseProfile(compiled.text, compiled.name);
    const bool is_alike = profile.ok() && profile->device() == key.device && profile->processor() == key.processor &&
                          (key.device != "CPU" || profile->threads() == key.threads);
    if (!is_alike) continue;
    remarks.push_back(absl::StrCat(remarks.empty() ? "this machine was not measured (calibrate), " : "",
                                   "so its seconds are those of ", profile->name(), ", a profile of machines with ",
                                   key.processor));
    of_class.profile = found(*std::move(profile));
    break;
  }
  of_class.remark = absl::StrJoin(remarks, "; ");
  return of_class;
}

}  // namespace shale
