// Statements of a chat template.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_expression.h"

namespace shale {

struct TemplateStatement {
  enum class Kind {
    kText,        // Writes text.
    kPrint,       // Writes expression.
    kIf,          // Runs the first of branches whose condition is true, if there is one.
    kFor,         // Runs body for the names in expression that pass condition, or otherwise if there are none.
    kSet,         // Sets the variable text, or text.attribute, to expression.
    kBreak,       // Ends the innermost loop.
    kContinue,    // Goes on with the next element of the innermost loop.
    kGeneration,  // Runs body, which writes what the assistant says.
  };
  struct Branch {
    TemplateExpression::Pointer condition;  // Null for "else".
    std::vector<TemplateStatement> body;
  };

  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  std::string attribute;
  std::vector<std::string> names;
  TemplateExpression::Pointer expression, condition;
  std::vector<TemplateStatement> body, otherwise;
  std::vector<Branch> branches;
};

// Parses a template: text, expressions, and the statements if, for, set, break, continue and generation. Refuses other
// statements by name, with the line.
absl::StatusOr<std::vector<TemplateStatement>> ParseTemplate(absl::string_view source);
// Returns whether the statements have {% generation %}.
bool HasGeneration(const std::vector<TemplateStatement>& statements);

}  // namespace shale
