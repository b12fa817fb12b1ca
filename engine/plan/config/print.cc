#include "engine/api/job.h"
#include "engine/plan/config/field_checks.h"
#include "engine/plan/config/job_from_spec.h"
#include "google/protobuf/text_format.h"
#include "proto/job.pb.h"

namespace shale {

std::string ResolvedJobText(const Job& job) {
  proto::Job spec = SpecOf(job);
  ClearWithoutEffect(&spec);
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(spec, &text);
  return kResolvedJobHead + text;
}

}  // namespace shale
