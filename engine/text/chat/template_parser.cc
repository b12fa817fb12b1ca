#include "engine/text/chat/template_parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/strings/messages.h"
#include "engine/text/chat/template_lexer.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Statement = TemplateStatement;
using Token = TemplateToken;

class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens) : cursor_(std::move(tokens)) {}

  // Reads statements up to a block that begins with one of the words `ends`. Reads that word too, into `*end`.
  absl::Status Body(std::initializer_list<absl::string_view> ends, std::vector<Statement>* body, std::string* end) {
    SHALE_RETURN_IF_ERROR(cursor_.Down("statements are nested too deeply"));
    while (true) {
      const Token& token = cursor_.Next();
      if (token.kind == Token::Kind::kEnd) {
        if (ends.size() > 0) return cursor_.Error(absl::StrCat("the template ends before ", *ends.begin()));
        break;
      }
      if (token.kind == Token::Kind::kData) {
        Statement text;
        text.text = token.text;
        body->push_back(std::move(text));
      } else if (token.kind == Token::Kind::kVariableBegin) {
        Statement print = New(Statement::Kind::kPrint);
        SHALE_ASSIGN_OR_RETURN(print.expression, ParseTemplateExpression(cursor_));
        SHALE_RETURN_IF_ERROR(cursor_.Expect(Token::Kind::kVariableEnd));
        body->push_back(std::move(print));
      } else {
        SHALE_ASSIGN_OR_RETURN(const std::string word, cursor_.Name());
        if (std::find(ends.begin(), ends.end(), word) != ends.end()) {
          *end = word;
          break;
        }
        SHALE_RETURN_IF_ERROR(Block(word, body));
      }
    }
    cursor_.Up();
    return absl::OkStatus();
  }

 private:
  Statement New(Statement::Kind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = cursor_.Peek().line;
    return statement;
  }
  absl::Status Block(const std::string& word, std::vector<Statement>* body) {
    if (word == "if") return If(body);
    if (word == "for") return For(body);
    if (word == "set") return Set(body);
    if (word == "generation") return Generation(body);
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return cursor_.Error(absl::StrCat(word, " stands outside of a loop"));
      body->push_back(New(word == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue));
      return cursor_.Expect(Token::Kind::kBlockEnd);
    }
    return cursor_.Error(absl::StrCat("the statement ", Quoted(word),
                                      " is not supported; supported: if, for, set, break, continue, generation"));
  }

  absl::Status Generation(std::vector<Statement>* body) {
    if (in_generation_) return cursor_.Error("generation inside of generation is not supported");
    Statement statement = New(Statement::Kind::kGeneration);
    SHALE_RETURN_IF_ERROR(cursor_.Expect(Token::Kind::kBlockEnd));
    in_generation_ = true;
    const int loops = std::exchange(loops_, 0);  // As in Jinja, no loop goes on from inside.
    std::string end;
    SHALE_RETURN_IF_ERROR(Body({"endgeneration"}, &statement.body, &end));
    loops_ = loops;
    in_generation_ = false;
    body->push_back(std::move(statement));
    return cursor_.Expect(Token::Kind::kBlockEnd);
  }

  absl::Status If(std::vector<Statement>* body) {
    Statement statement = New(Statement::Kind::kIf);
    for (std::string word = "if"; word != "endif";) {
      Statement::Branch branch;
      const bool last = word == "else";
      if (!last) {
        SHALE_ASSIGN_OR_RETURN(branch.condition, ParseTemplateExpression(cursor_));
      }
      SHALE_RETURN_IF_ERROR(cursor_.Expect(Token::Kind::kBlockEnd));
      if (last) {
        SHALE_RETURN_IF_ERROR(Body({"endif"}, &branch.body, &word));
      } else {
        SHALE_RETURN_IF_ERROR(Body({"endif", "elif", "else"}, &branch.body, &word));
      }
      statement.branches.push_back(std::move(branch));
    }
    body->push_back(std::move(statement));
    return cursor_.Expect(Token::Kind::kBlockEnd);
  }

  absl::Status For(std::vector<Statement>* body) {
    Statement statement = New(Statement::Kind::kFor);
    do {
      SHALE_ASSIGN_OR_RETURN(std::string name, cursor_.Name());
      statement.names.push_back(std::move(name));
    } while (cursor_.Take(","));
    if (!cursor_.TakeWord("in")) return cursor_.Wanted("\"in\"");
    SHALE_ASSIGN_OR_RETURN(statement.expression, ParseTemplateDisjunction(cursor_));
    if (cursor_.TakeWord("if")) {
      SHALE_ASSIGN_OR_RETURN(statement.condition, ParseTemplateExpression(cursor_));
    }
    if (cursor_.IsWord("recursive")) return cursor_.Error("recursive loops are not supported");
    SHALE_RETURN_IF_ERROR(cursor_.Expect(Token::Kind::kBlockEnd));
    std::string word;
    ++loops_;
    SHALE_RETURN_IF_ERROR(Body({"endfor", "else"}, &statement.body, &word));
    --loops_;
    if (word == "else") {
      SHALE_RETURN_IF_ERROR(cursor_.Expect(Token::Kind::kBlockEnd));
      SHALE_RETURN_IF_ERROR(Body({"endfor"}, &statement.otherwise, &word));
    }
    body->push_back(std::move(statement));
    return cursor_.Expect(Token::Kind::kBlockEnd);
  }

  absl::Status Set(std::vector<Statement>* body) {
    Statement statement = New(Statement::Kind::kSet);
    SHALE_ASSIGN_OR_RETURN(statement.text, cursor_.Name());
    if (cursor_.Take(".")) {
      SHALE_ASSIGN_OR_RETURN(statement.attribute, cursor_.Name());
    }
    if (!cursor_.Is("=")) return cursor_.Error("set is only supported with one name or attribute, and = behind it");
    cursor_.Next();
    SHALE_ASSIGN_OR_RETURN(statement.expression, ParseTemplateExpression(cursor_));
    body->push_back(std::move(statement));
    return cursor_.Expect(Token::Kind::kBlockEnd);
  }

  TemplateCursor cursor_;
  int loops_ = 0;  // Loops around the statement that is being parsed.
  bool in_generation_ = false;
};

}  // namespace

absl::StatusOr<std::vector<TemplateStatement>> ParseTemplate(absl::string_view source) {
  SHALE_ASSIGN_OR_RETURN(std::vector<TemplateToken> tokens, LexTemplate(source));
  std::vector<TemplateStatement> statements;
  std::string end;
  SHALE_RETURN_IF_ERROR(TemplateParser(std::move(tokens)).Body({}, &statements, &end));
  return statements;
}

bool HasGeneration(const std::vector<TemplateStatement>& statements) {
  return std::any_of(statements.begin(), statements.end(), [](const Statement& statement) {
    return statement.kind == Statement::Kind::kGeneration || HasGeneration(statement.body) ||
           HasGeneration(statement.otherwise) ||
           std::any_of(statement.branches.begin(), statement.branches.end(),
                       [](const Statement::Branch& branch) { return HasGeneration(branch.body); });
  });
}

}  // namespace shale
