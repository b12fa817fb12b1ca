// Reads, checks, prints and keeps machine profiles (proto/machine.proto).
//
// A profile has a name and is compiled in (tools/machines), or it is a file, or calibrate measured it on this machine
// and keeps it in the user's cache. Whatever its source, a profile that these functions return has been checked: its
// numbers are finite, not negative and possible, and what every plan of seconds needs is there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/io/file.h"
#include "proto/machine.pb.h"

namespace shale {

class SpecErrors;  // engine/plan/config/errors.h

// The machine that a measured profile belongs to. The seconds of another one say nothing about it.
struct MachineKey {
  std::string device;     // "CPU" or "CUDA".
  std::string processor;  // Of the device, as MachineProfile::processor.
  int64_t threads = 0;    // That the CPUs of the host run at once.
};

// Returns the key of this machine's CPUs, as the system names them, or of its GPUs if they are called `gpu`.
MachineKey KeyOfThisHost(std::string gpu = "");

// Reads a profile from the text of `file`, which messages name. Returns InvalidArgument with a line for each error, at
// most 20, if it is no profile, or if it is partial, absurd or ambiguous.
absl::StatusOr<proto::MachineProfile> ParseProfile(absl::string_view text, absl::string_view file);

// Reads the profile of this name, or the file at this path, which has a slash or ends in .textproto. Returns NotFound
// with the names that there are.
absl::StatusOr<proto::MachineProfile> ReadProfile(const std::string& name_or_path);

// The profiles that are compiled in: the files of tools/machines, by their names without extension.
extern const absl::Span<const CompiledFile> kCompiledProfiles;
// Returns the names of the profiles that are compiled in, sorted.
std::vector<std::string> ProfileNames();

// Returns OK if ParseProfile would accept what PrintProfile makes of `profile`.
absl::Status CheckProfile(const proto::MachineProfile& profile, absl::string_view file);
// Reports the same errors in `errors`, which may know where the fields stand.
void CheckProfile(const proto::MachineProfile& profile, SpecErrors* errors);

// Returns the text of a profile, with a line for each rate, work and link.
std::string PrintProfile(const proto::MachineProfile& profile);

// Puts what was measured into `profile`: its works and rates take the place of equal ones, and all numbers that it
// gives take the place of those of `profile`.
void MergeProfile(const proto::MachineProfile& measured, proto::MachineProfile* profile);

// Returns the file of a machine's profile in `cache_folder` (UserCacheFolder). Its name also has the version of what is
// measured, so that a later program does not take what an earlier one meant otherwise.
std::string CachedProfilePath(const std::string& cache_folder, const MachineKey& key);

// Returns the profile of a machine in `cache_folder`. Returns NotFound if there is none, also if `cache_folder` is
// empty, and InvalidArgument for a file that is damaged or is the profile of another machine.
absl::StatusOr<proto::MachineProfile> CachedProfile(const std::string& cache_folder, const MachineKey& key);

// What is known of this machine's speed.
struct FoundProfile {
  std::shared_ptr<const proto::MachineProfile> profile;  // Null: nothing.
  // What people should know: that the profile in the cache is damaged, and which profile is taken in place of one that
  // was measured here. Empty if there is nothing to say.
  std::string remark;

  // Returns the remark as what a run says of its prediction, in one line. Empty if there is nothing to say.
  std::string Line() const;
};

// Returns the profile that calibrate measured of this machine's CPUs, or of its GPUs if they are called `gpu`, from the
// user's cache. If there is none, returns one that is compiled in, of a machine of the same class: its GPUs have the
// same name, or its CPUs have the same name, family and model, and so the same instructions, and run as many threads.
FoundProfile ProfileOfThisMachine(std::string gpu);

}  // namespace shale
