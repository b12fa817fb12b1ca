#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/strings/messages.h"
#include "engine/text/chat/template_operations.h"
#include "engine/text/chat/template_parser.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Value = TemplateValue;
using ExpressionKind = TemplateExpression::Kind;

constexpr int64_t kMostSteps = 1'000'000;
constexpr int64_t kStepsOfLoop = 8;  // To make the variables of a loop takes longer than other steps.

enum class Flow { kOn, kBreak, kContinue };

absl::Status At(int line, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("line ", line, ": ", status.message()));
}

// Returns the value of a StatusOr, or its error with the line.
template <class T>
absl::StatusOr<T> At(int line, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return At(line, value.status());
}

class Renderer {
 public:
  Renderer(const Value& variables, const std::string& date, double input_bytes) : date_(date), budget_(input_bytes) {
    scopes_.emplace_back();
    for (const auto& [name, value] : *variables.dict) scopes_[0][name] = value;
  }

  absl::StatusOr<Flow> Body(const std::vector<TemplateStatement>& statements) {
    for (const TemplateStatement& statement : statements) {
      SHALE_RETURN_IF_ERROR(Step(statement.line));
      SHALE_ASSIGN_OR_RETURN(const Flow flow, Run(statement));
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }
  RenderedTemplate Take() { return std::move(out_); }

 private:
  absl::Status Step(int line, int64_t steps = 1) {
    out_.steps += steps;
    if (out_.steps <= kMostSteps) return absl::OkStatus();
    return At(line, absl::InvalidArgumentError("the template takes too many steps"));
  }

  absl::StatusOr<Flow> Run(const TemplateStatement& statement) {
    switch (statement.kind) {
      case TemplateStatement::Kind::kText:
        SHALE_RETURN_IF_ERROR(At(statement.line, budget_.Take(2 * static_cast<double>(statement.text.size()))));
        out_.text.Append(statement.text);
        return Flow::kOn;
      case TemplateStatement::Kind::kPrint: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
        SHALE_ASSIGN_OR_RETURN(const auto text, At(statement.line, Printed(value)));
        const double bytes = static_cast<double>(text->bytes.size() + text->origins.size() * sizeof(TextOrigin));
        SHALE_RETURN_IF_ERROR(At(statement.line, budget_.Take(2 * bytes)));
        out_.text.Append(*text);
        return Flow::kOn;
      }
      case TemplateStatement::Kind::kIf:
        for (const TemplateStatement::Branch& branch : statement.branches) {
          if (branch.condition != nullptr) {
            SHALE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
            if (!condition.truth()) continue;
          }
          return Body(branch.body);
        }
        return Flow::kOn;
      case TemplateStatement::Kind::kFor: return Loop(statement);
      case TemplateStatement::Kind::kSet: return Set(statement);
      case TemplateStatement::Kind::kGeneration: {
        const size_t begin = out_.text.bytes.size();
        scopes_.emplace_back();  // As in Jinja, what is set inside is not set behind it.
        SHALE_RETURN_IF_ERROR(Body(statement.body).status());
        scopes_.pop_back();
        out_.generations.emplace_back(begin, out_.text.bytes.size());
        return Flow::kOn;
      }
      case TemplateStatement::Kind::kBreak: return Flow::kBreak;
      case TemplateStatement::Kind::kContinue: return Flow::kContinue;
    }
    return Flow::kOn;
  }

  absl::StatusOr<Flow> Set(const TemplateStatement& statement) {
    SHALE_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.expression));
    if (statement.attribute.empty()) {
      scopes_.back()[statement.text] = std::move(value);
      return Flow::kOn;
    }
    const Value space = Lookup(statement.text);
    if (!space.is_object() || space.number != kNamespace) {
      return At(statement.line, absl::InvalidArgumentError(absl::StrCat("only namespaces have attributes to set; ",
                                                                        Quoted(statement.text), " is ", space.type())));
    }
    if (value.has_namespace || value.depth > kMaxNesting) {
      return At(statement.line,
                absl::InvalidArgumentError(absl::StrCat("cannot set ", statement.text, ".", statement.attribute,
                                                        " to a value that is or holds a namespace, or that is nested "
                                                        "too deeply")));
    }
    Value::Dict& members = *space.dict;
    SHALE_RETURN_IF_ERROR(At(statement.line, budget_.Take(8 * static_cast<double>(members.size()))));
    const auto found = std::find_if(members.begin(), members.end(),
                                    [&](const auto& member) { return member.first == statement.attribute; });
    if (found == members.end()) {
      members.emplace_back(statement.attribute, std::move(value));
    } else {
      found->second = std::move(value);
    }
    return Flow::kOn;
  }

  // Sets the variables of a loop to an element, or to the values that it holds.
  absl::Status Assign(const TemplateStatement& loop, const Value& element) {
    if (loop.names.size() == 1) {
      scopes_.back()[loop.names[0]] = element;
      return absl::OkStatus();
    }
    if (!element.is(Value::Kind::kList) || element.form == Value::Form::kGenerator ||
        element.list->size() != loop.names.size()) {
      return At(loop.line, absl::InvalidArgumentError(absl::StrCat("a loop with ", loop.names.size(),
                                                                   " names needs lists of as many values; found ",
                                                                   element.type())));
    }
    for (size_t i = 0; i < loop.names.size(); ++i) scopes_.back()[loop.names[i]] = (*element.list)[i];
    return absl::OkStatus();
  }

  absl::StatusOr<Flow> Loop(const TemplateStatement& loop) {
    SHALE_ASSIGN_OR_RETURN(const Value all, Evaluate(*loop.expression));
    SHALE_ASSIGN_OR_RETURN(Value::List elements, At(loop.line, ElementsOf(all, budget_)));
    if (loop.condition != nullptr) {
      Value::List kept;
      scopes_.emplace_back();
      for (Value& element : elements) {
        SHALE_RETURN_IF_ERROR(Step(loop.line));
        SHALE_RETURN_IF_ERROR(Assign(loop, element));
        SHALE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*loop.condition));
        if (condition.truth()) kept.push_back(std::move(element));
      }
      scopes_.pop_back();
      elements = std::move(kept);
    }
    bool any_to_end = false;  // Whether an element went through the whole body. Else Jinja renders `otherwise`.
    const int64_t size = std::ssize(elements);
    for (int64_t i = 0; i < size; ++i) {
      SHALE_RETURN_IF_ERROR(Step(loop.line, kStepsOfLoop));
      scopes_.emplace_back();
      scopes_.back()["loop"] =
          Value::Of(Value::Dict{{"index", Value::Integer(i + 1)},
                                {"index0", Value::Integer(i)},
                                {"revindex", Value::Integer(size - i)},
                                {"revindex0", Value::Integer(size - i - 1)},
                                {"first", Value::Bool(i == 0)},
                                {"last", Value::Bool(i + 1 == size)},
                                {"length", Value::Integer(size)},
                                {"previtem", i > 0 ? elements[i - 1] : Value::Undefined("loop.previtem")},
                                {"nextitem", i + 1 < size ? elements[i + 1] : Value::Undefined("loop.nextitem")}});
      scopes_.back()["loop"].number = kLoopState;
      SHALE_RETURN_IF_ERROR(Assign(loop, elements[i]));
      SHALE_ASSIGN_OR_RETURN(const Flow flow, Body(loop.body));
      scopes_.pop_back();
      any_to_end = any_to_end || flow == Flow::kOn;
      if (flow == Flow::kBreak) break;
    }
    return any_to_end ? Flow::kOn : Body(loop.otherwise);
  }

  Value Lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    }
    return IsTemplateFunction(name) ? Value::Function(name) : Value::Undefined(name);
  }

  // Returns the value of a part of an expression, or none if there is no such part.
  absl::StatusOr<Value> Part(const TemplateExpression& expression, size_t index) {
    if (index >= expression.parts.size() || expression.parts[index] == nullptr) return Value::None();
    return Evaluate(*expression.parts[index]);
  }

  absl::StatusOr<Value> Evaluate(const TemplateExpression& expression) {
    SHALE_RETURN_IF_ERROR(Step(expression.line));
    const int line = expression.line;
    switch (expression.kind) {
      case ExpressionKind::kLiteral: return expression.value;
      case ExpressionKind::kName: return Lookup(expression.name);
      case ExpressionKind::kAttribute: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Part(expression, 0));
        return At(line, AttributeOf(value, expression.name, budget_));
      }
      case ExpressionKind::kItem: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Part(expression, 0));
        SHALE_ASSIGN_OR_RETURN(const Value index, Part(expression, 1));
        return At(line, ItemOf(value, index, budget_));
      }
      case ExpressionKind::kSlice: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Part(expression, 0));
        Value bounds[3];
        for (int i = 0; i < 3; ++i) {
          SHALE_ASSIGN_OR_RETURN(bounds[i], Part(expression, i + 1));
        }
        return At(line, SliceOf(value, bounds, budget_));
      }
      case ExpressionKind::kCall: return Call(expression);
      case ExpressionKind::kFilter: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Part(expression, 0));
        SHALE_ASSIGN_OR_RETURN(const TemplateArguments arguments, Arguments(expression));
        return At(line, ApplyFilter(expression.name, value, arguments, budget_));
      }
      case ExpressionKind::kTest: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Part(expression, 0));
        SHALE_ASSIGN_OR_RETURN(const TemplateArguments arguments, Arguments(expression));
        SHALE_ASSIGN_OR_RETURN(const bool passes, At(line, ApplyTest(expression.name, value, arguments, budget_)));
        return Value::Bool(passes);
      }
      case ExpressionKind::kNot: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Part(expression, 0));
        return Value::Bool(!value.truth());
      }
      case ExpressionKind::kMinus: {
        SHALE_ASSIGN_OR_RETURN(const Value value, Part(expression, 0));
        return At(line, ApplyBinary("-", Value::Integer(0), value, budget_));
      }
      case ExpressionKind::kBinary: return Binary(expression);
      case ExpressionKind::kConditional: {
        SHALE_ASSIGN_OR_RETURN(const Value condition, Part(expression, 1));
        if (condition.truth()) return Part(expression, 0);
        if (expression.parts[2] == nullptr) return Value::Undefined("an if without else");
        return Part(expression, 2);
      }
      case ExpressionKind::kList: return List(expression);
    }
    return Value::None();
  }

  // Evaluates the right operand of "and" and "or" only if the left one does not decide.
  absl::StatusOr<Value> Binary(const TemplateExpression& expression) {
    SHALE_ASSIGN_OR_RETURN(const Value left, Part(expression, 0));
    if (expression.name == "and" && !left.truth()) return left;
    if (expression.name == "or" && left.truth()) return left;
    SHALE_ASSIGN_OR_RETURN(const Value right, Part(expression, 1));
    if (expression.name == "and" || expression.name == "or") return right;
    return At(expression.line, ApplyBinary(expression.name, left, right, budget_));
  }

  absl::StatusOr<Value> List(const TemplateExpression& expression) {
    Value::List list;
    for (size_t i = 0; i < expression.parts.size(); ++i) {
      SHALE_ASSIGN_OR_RETURN(Value element, Part(expression, i));
      list.push_back(std::move(element));
    }
    Value made = Value::Of(std::move(list));
    if (made.depth <= kMaxNesting) return made;
    return At(expression.line, absl::InvalidArgumentError("values are nested too deeply"));
  }

  // Returns the arguments of a call, a filter or a test: its parts without the first, and its keywords.
  absl::StatusOr<TemplateArguments> Arguments(const TemplateExpression& expression) {
    TemplateArguments arguments;
    for (size_t i = 1; i < expression.parts.size(); ++i) {
      SHALE_ASSIGN_OR_RETURN(Value value, Part(expression, i));
      arguments.values.push_back(std::move(value));
    }
    for (const auto& [name, part] : expression.keywords) {
      SHALE_ASSIGN_OR_RETURN(Value value, Evaluate(*part));
      arguments.keywords.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  absl::StatusOr<Value> Call(const TemplateExpression& call) {
    const TemplateExpression& callee = *call.parts[0];
    SHALE_ASSIGN_OR_RETURN(const TemplateArguments arguments, Arguments(call));
    if (callee.kind == ExpressionKind::kName) {
      if (!Lookup(callee.name).is(Value::Kind::kFunction) && IsTemplateFunction(callee.name)) {
        return At(call.line,
                  absl::InvalidArgumentError(absl::StrCat(Quoted(callee.name), " is not the function here")));
      }
      return At(call.line, ApplyFunction(callee.name, arguments, date_, budget_));
    }
    if (callee.kind != ExpressionKind::kAttribute) {
      return At(call.line, absl::InvalidArgumentError("only functions and methods can be called"));
    }
    SHALE_ASSIGN_OR_RETURN(const Value self, Part(callee, 0));
    return At(call.line, ApplyMethod(callee.name, self, arguments, budget_));
  }

  std::vector<std::map<std::string, Value>> scopes_;  // The innermost loop is the last.
  const std::string& date_;
  TemplateBudget budget_;
  RenderedTemplate out_;
};

}  // namespace

absl::StatusOr<RenderedTemplate> RenderTemplate(const std::vector<TemplateStatement>& statements,
                                                const TemplateValue& variables, const std::string& date,
                                                double input_bytes) {
  Renderer renderer(variables, date, input_bytes);
  SHALE_RETURN_IF_ERROR(renderer.Body(statements).status());
  return renderer.Take();
}

}  // namespace shale
