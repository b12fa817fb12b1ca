// print_fields: prints the manual's page of the fields of a job.
//
//   bazel run //tools:print_fields > tools/manual/fields.md
#include <cstdio>

#include "engine/plan/config/fields.h"

int main() { std::fputs(shale::FieldsPage().c_str(), stdout); }
