// One error of a job, in parts, for programs that show errors beside the fields that caused them.
#pragma once

#include <string>

namespace shale {

struct JobError {
  std::string source;   // The file that has the error, or "--set" for an override.
  int line = 0;         // Of the field, from 1. 0: the source has no lines, or the error belongs to no field.
  int column = 0;       // From 1; 0 if `line` is 0.
  std::string path;     // Of the field: "sharding.strategy". Empty: the error belongs to no field.
  std::string message;  // What was found and what is allowed.
};

}  // namespace shale
