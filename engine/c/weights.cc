// Generation through the C interface.
//
// Export of trained weights through the C interface.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/api/export.h"
#include "engine/api/generator.h"
#include "engine/api/job.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "engine/c/jobs.h"
#include "engine/c/shale.h"
#include "engine/c/trainers.h"
#include "engine/compile/model/config.h"
#include "engine/run/generate/generated_text.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

// A generator, and what makes text of its tokens.
struct TextGenerator {
  std::unique_ptr<Generator> tokens;
  std::optional<Tokenizer> tokenizer;  // Without one, tokens may be bytes.
  std::vector<int32_t> end_tokens;     // End a text.

  absl::StatusOr<std::vector<int32_t>> Encode(const char* text) const {
    if (tokenizer) return PromptTokens(*tokenizer, text);
    absl::StatusOr<std::vector<int32_t>> prompt = tokens->TextPrompt(text);
    if (prompt.ok() || tokens->is_text()) return prompt;
    return absl::InvalidArgumentError(
        absl::StrCat(prompt.status().message(), ", or give the generator the folder of its tokenizer"));
  }
};

Handles<TextGenerator>& Generators() {
  static auto& generators = *new Handles<TextGenerator>(HandleKind::kGenerator, "generator");
  return generators;
}

absl::StatusOr<std::vector<std::string>> TakeStops(const char* const* stops, size_t count) {
  if (count > 0) SHALE_RETURN_IF_ERROR(Require(stops, "stops"));
  std::vector<std::string> taken;
  for (size_t i = 0; i < count; ++i) {
    SHALE_RETURN_IF_ERROR(Require(stops[i], absl::StrCat("stops[", i, "]")));
    taken.emplace_back(stops[i]);
  }
  return taken;
}

// Writes tokens into the buffer of the caller, as shale.h says of text.
absl::Status GiveTokens(absl::Span<const int32_t> tokens, int32_t* buffer, size_t capacity, size_t* needed) {
  SHALE_RETURN_IF_ERROR(Require(needed, "needed"));
  *needed = tokens.size();
  if (buffer == nullptr) return absl::OkStatus();
  if (capacity < tokens.size()) {
    return absl::OutOfRangeError(absl::StrCat("tokens has room for ", capacity, "; needed are ", tokens.size()));
  }
  std::copy(tokens.begin(), tokens.end(), buffer);
  return absl::OkStatus();
}

absl::StatusOr<DType> TypeOf(int32_t type) {
  switch (type) {
    case SHALE_F32: return DType::kFloat32;
    case SHALE_BF16: return DType::kBFloat16;
    case SHALE_F16: return DType::kFloat16;
    default:
      return absl::InvalidArgumentError(absl::StrCat("type is ", type, "; allowed: SHALE_F32, SHALE_BF16, SHALE_F16"));
  }
}

absl::StatusOr<Job> JobOf(const CheckpointReader& checkpoint) {
  return ParseRecordedJob(checkpoint.manifest().job, "the checkpoint's job");
}

// Returns what reads the base of a checkpoint from `folder`, or null if it has none.
absl::StatusOr<ReadBase> BaseOf(const CheckpointReader& checkpoint, const std::string& folder) {
  if (!checkpoint.manifest().base && folder.empty()) return nullptr;
  SHALE_ASSIGN_OR_RETURN(const Job job, JobOf(checkpoint));
  SHALE_ASSIGN_OR_RETURN(OpenedBase base, OpenVerifiedBase(checkpoint, job.model, folder));
  return std::move(base.read);
}

absl::Status ExportAdapter(const CheckpointReader& checkpoint, DType type, const std::string& out) {
  SHALE_ASSIGN_OR_RETURN(const Job job, JobOf(checkpoint));
  const auto* decoder = std::get_if<DecoderConfig>(&job.model);
  if (decoder == nullptr || !decoder->adapter) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.folder(), ": the model has no adapters (model.adapter)"));
  }
  CheckpointValues values(checkpoint);
  const auto read = [&](absl::string_view parameter, int64_t begin, absl::Span<float> to) {
    return values.Read(parameter, begin, to);
  };
  return ExportHfAdapter(*decoder, type, job.hf_folder, read, out);
}

}  // namespace

}  // namespace shale::c

using shale::c::Call;
using shale::c::Generators;
using shale::c::Require;

shale_code shale_generator_create(const char* folder, const struct shale_model* model, shale_generator* generator,
                                  shale_error* error) {
  return shale_generator_create_with_base(folder, model, /*base_folder=*/nullptr, generator, error);
}

shale_code shale_generator_create_with_base(const char* folder, const struct shale_model* model,
                                            const char* base_folder, shale_generator* generator, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(generator, "generator"));
    SHALE_RETURN_IF_ERROR(shale::c::Trainers().CheckProcess());
    SHALE_RETURN_IF_ERROR(Generators().CheckProcess());
    std::optional<shale::CustomModel> custom;
    if (model != nullptr) {
      SHALE_ASSIGN_OR_RETURN(custom, shale::c::MakeModel(model));
    }
    const std::string base = base_folder == nullptr ? "" : base_folder;
    auto created = std::make_shared<shale::c::TextGenerator>();
    SHALE_RETURN_IF_ERROR(
        shale::c::UseCheckpoint(folder, [&](const shale::CheckpointReader& checkpoint) -> absl::Status {
          SHALE_ASSIGN_OR_RETURN(created->tokens,
                                 shale::Generator::Create(checkpoint, shale::CreateBackend, custom, {}, base));
          return absl::OkStatus();
        }));
    SHALE_ASSIGN_OR_RETURN(*generator, Generators().Add(std::move(created)));
    return absl::OkStatus();
  });
}

shale_code shale_generator_set_tokenizer(shale_generator generator, const char* folder, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(folder, "folder"));
    SHALE_ASSIGN_OR_RETURN(const auto used, Generators().Take(generator));
    SHALE_ASSIGN_OR_RETURN(shale::Tokenizer tokenizer, shale::Tokenizer::Load(folder));
    SHALE_ASSIGN_OR_RETURN(used->end_tokens, shale::EndTokens(folder, tokenizer));
    used->tokenizer = std::move(tokenizer);
    return absl::OkStatus();
  });
}

shale_code shale_generator_encode(shale_generator generator, const char* text, int32_t* tokens, size_t capacity,
                                  size_t* needed, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(text, "text"));
    SHALE_ASSIGN_OR_RETURN(const auto used, Generators().Take(generator));
    SHALE_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, used->Encode(text));
    return shale::c::GiveTokens(prompt, tokens, capacity, needed);
  });
}

shale_code shale_generator_generate(shale_generator generator, const int32_t* prompt, size_t prompt_tokens,
                                    int64_t count, const shale_sampling* sampling,
                                    int32_t (*on_token)(void* user, int32_t token), void* user, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(prompt, "prompt"));
    if (on_token == nullptr) return absl::InvalidArgumentError("on_token is NULL");
    SHALE_ASSIGN_OR_RETURN(const shale::SamplingOptions options, shale::c::TakeSampling(sampling));
    SHALE_ASSIGN_OR_RETURN(const auto used, Generators().Take(generator));
    return used->tokens->Generate(absl::MakeConstSpan(prompt, prompt_tokens), count, options,
                                  [&](int32_t token) { return on_token(user, token) == 0; });
  });
}

shale_code shale_generator_generate_text(shale_generator generator, const char* prompt, int64_t count,
                                         const shale_sampling* sampling, const char* const* stops, size_t stop_count,
                                         int32_t (*on_text)(void* user, const char* text, size_t bytes), void* user,
                                         shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(prompt, "prompt"));
    if (on_text == nullptr) return absl::InvalidArgumentError("on_text is NULL");
    SHALE_ASSIGN_OR_RETURN(std::vector<std::string> stop_strings, shale::c::TakeStops(stops, stop_count));
    SHALE_ASSIGN_OR_RETURN(const shale::SamplingOptions options, shale::c::TakeSampling(sampling));
    SHALE_ASSIGN_OR_RETURN(const auto used, Generators().Take(generator));
    SHALE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, used->Encode(prompt));
    shale::GeneratedText text(used->tokenizer ? &*used->tokenizer : nullptr, /*is_text=*/true, /*skip_special=*/true,
                              std::move(stop_strings));
    bool goes_on = true;
    const auto show = [&](const std::string& piece) {
      goes_on = goes_on && (piece.empty() || on_text(user, piece.c_str(), piece.size()) == 0);
    };
    SHALE_RETURN_IF_ERROR(used->tokens->GenerateAll(
        {tokens}, {.count = count, .sampling = options, .stop_tokens = used->end_tokens}, [&](int64_t, int32_t token) {
          show(text.Push(token));
          return goes_on && !text.stopped();
        }));
    show(text.Finish());
    return absl::OkStatus();
  });
}

shale_code shale_generator_free(shale_generator generator, shale_error* error) {
  return Call(error, [&] { return Generators().Free(generator); });
}

shale_code shale_export_parameters(const char* folder, int32_t type, const char* file, shale_error* error) {
  return shale_export_parameters_with_base(folder, /*base_folder=*/nullptr, type, file, error);
}

shale_code shale_export_parameters_with_base(const char* folder, const char* base_folder, int32_t type,
                                             const char* file, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(file, "file"));
    SHALE_ASSIGN_OR_RETURN(const shale::DType dtype, shale::c::TypeOf(type));
    const std::string base = base_folder == nullptr ? "" : base_folder;
    return shale::c::UseCheckpoint(folder, [&](const shale::CheckpointReader& checkpoint) -> absl::Status {
      SHALE_ASSIGN_OR_RETURN(shale::ReadBase read, shale::c::BaseOf(checkpoint, base));
      return shale::ExportParameters(checkpoint, dtype, file, std::move(read));
    });
  });
}

shale_code shale_export_adapter(const char* folder, int32_t type, const char* out, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(out, "out"));
    SHALE_ASSIGN_OR_RETURN(const shale::DType dtype, shale::c::TypeOf(type));
    return shale::c::UseCheckpoint(folder, [&](const shale::CheckpointReader& checkpoint) {
      return shale::c::ExportAdapter(checkpoint, dtype, out);
    });
  });
}
