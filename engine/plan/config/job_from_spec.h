// Turns a spec into plain structs, once each of its fields is in range, and back.
//
// The checks of a spec come before and after: each field by itself, its conditions (the values of other fields with
// which alone it has an effect: Condition in proto/field.proto), and the rules between fields, which forbid
// contradictions, settings without effect, and products of sizes that are too large.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/plan/config/errors.h"
#include "engine/plan/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// Checks every field of `job` and reports in `errors`: numbers that are out of range, not finite, or required and
// missing; enum numbers without a name; unknown fields; strings that are not one line of UTF-8. Sets each number or
// enum that it reports to an allowed value, so that later checks can go on with `job`.
void CheckFields(proto::Job* job, SpecErrors* errors);

// Returns the job that `spec` describes, with all defaults that follow from the spec filled in. Settings that depend on
// the data or on the machine stay open (engine/api/plan.h decides them). Settings that contradict each other
// are kept: CheckRules reports them. REQUIRES: CheckFields has checked `spec`.
Job JobFromSpec(const proto::Job& spec);

// Returns the spec of a job, with every default written out, also in fields that have no effect. Leaves out what is
// still undecided, and what is to be printed only if it was changed.
proto::Job SpecOf(const Job& job);

// Gives `job` the value that `other` has of the field at `path`. REQUIRES: a member holds the field.
void TakeField(absl::string_view path, const Job& other, Job& job);

// Returns whether a job has the value that `setting` (path=value, as --set takes it) gives a field.
bool HasSetting(const Job& job, const std::string& setting);

// Reports in `errors` each field that `spec` gives although a condition of it does not hold: `spec` shows what is
// given, and `resolved` (SpecOf) the values of all fields.
void CheckConditions(const proto::Job& spec, const proto::Job& resolved, SpecErrors* errors);

// Clears the fields of `resolved` that have no effect, so that it can be read as a job.
void ClearWithoutEffect(proto::Job* resolved);

// Reports in `errors` every rule that `job` breaks. `job` is JobFromSpec(spec), and `spec` shows which values were
// given and which are defaults. Skips rules about a field that `errors` already lists as faulty.
void CheckRules(const proto::Job& spec, const Job& job, SpecErrors* errors);

// Reports in `errors` every rule about `data` that `job` breaks. CheckRules calls it.
void CheckDataRules(const Job& job, SpecErrors* errors);

// Reports in `errors` every product of sizes above 2^62, among those that the engine forms. CheckRules calls it.
void CheckSizes(const Job& job, SpecErrors* errors);

}  // namespace shale
