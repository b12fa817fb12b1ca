// The manifest of a checkpoint: the state of a run without its tensors, and the files that hold the tensors.
//
// A checkpoint is a folder:
//
//   MANIFEST                     the manifest
//   rank-00000-of-00002.shard    what rank 0 owned (engine/files/checkpoint/shard_header.h)
//   rank-00001-of-00002.shard
//
// State is recorded by parameter name and range of the parameter's elements, never by an offset in memory. Therefore
// any number of ranks can read a checkpoint, under any strategy, accumulation or kind of master weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "kernels/integers.h"

namespace shale {

inline constexpr char kManifestName[] = "MANIFEST";
// How many bytes of a shard file one checksum covers. A shard file is read and written in chunks of this size.
inline constexpr int64_t kCheckpointChunkBytes = int64_t{4} << 20;

// The parts of a parameter, each saved element by element. The numbers are part of the file format.
enum class SavedPart : uint8_t {
  kValue = 1,       // f32: the master weight, or the weight of a run in fp32.
  kHigh = 2,        // bf16: the weight under SPLIT masters, or without masters.
  kLow = 3,         // i16: the bits below kHigh (JoinMaster in kernels/dtype.h).
  kFirstState = 4,  // This and the following numbers: the optimizer's states, in the order of Manifest::states.
  kNf4Codes = 64,   // This and the following numbers: the parts of a weight in 4 bits (kernels/nf4.h).
  kNf4Absmax = 65,
  kNf4Scales = 66,
  kNf4Means = 67,
};
inline constexpr int kMaxSavedStates = 16;
inline constexpr int kNf4Parts = 4;
// Returns whether a part is one of the kNf4 parts.
constexpr bool IsNf4(SavedPart part) { return part >= SavedPart::kNf4Codes && part <= SavedPart::kNf4Means; }
constexpr SavedPart StatePart(int64_t state) {
  return static_cast<SavedPart>(static_cast<int64_t>(SavedPart::kFirstState) + state);
}
// Returns the index of the optimizer's state that a part is, or -1 if it is none.
constexpr int64_t StateOf(SavedPart part) {
  if (part < SavedPart::kFirstState || part >= SavedPart::kNf4Codes) return -1;
  return static_cast<int64_t>(part) - static_cast<int64_t>(SavedPart::kFirstState);
}

// What a state has elements for: the elements of a parameter, its rows, or its columns, which are the last dimension of
// its shape. The numbers are part of the file format.
enum class SavedExtent : uint8_t { kElements = 0, kRows = 1, kColumns = 2 };

// A state that an update rule keeps for each parameter that it updates (UpdateState in kernels/update_rules.h).
struct SavedState {
  std::string name;
  DType dtype = DType::kFloat32;
  int64_t block = 1;  // Elements of the parameter for each element of the state; the last block may be short.
  SavedExtent extent = SavedExtent::kElements;  // Other than kElements only with blocks of 1.

  bool operator==(const SavedState&) const = default;
};
// Returns whether one state can be converted into the other: whether they have the same name, block and extent, and the
// same dtype, or f32 and bf16.
bool Convertible(const SavedState& a, const SavedState& b);
// Returns the bytes per element of a part, or 0 if there is no such part. `states` are Manifest::states.
int64_t BytesPerElement(SavedPart part, absl::Span<const SavedState> states);
// Returns the elements of the parameter for each element of a part. REQUIRES: there is such a part.
int64_t BlockOf(SavedPart part, absl::Span<const SavedState> states);
// Returns "value", "high bits", "low bits", "NF4 codes" and so on, or the name of the state.
std::string NameOf(SavedPart part, absl::Span<const SavedState> states);

// Returns the states of AdamW. A manifest that names no states has these.
std::vector<SavedState> AdamWStates();

// The form in which the values of parameters are saved.
enum class SavedValues : uint8_t {
  kFloat32,   // kValue.
  kSplit,     // kHigh and kLow.
  kBFloat16,  // kHigh.
  kNf4,       // The kNf4 parts. Only of frozen parameters that SavedParameter::nf4 marks.
};
absl::string_view ToString(SavedValues values);

// Describes one part of the parameters in a checkpoint.
struct PartSpec {
  SavedPart part = SavedPart::kValue;
  std::string name;  // As NameOf returns it.
  DType dtype = DType::kFloat32;
  int64_t block = 1;  // Elements of the parameter for each element of the part.

  int64_t element_bytes() const { return SizeOf(dtype); }
};
// Returns the parts that a checkpoint of this form has, in the order in which they are saved: wide elements first, so
// that every element lies at a multiple of its size. `values` is the form of parameters that train, and
// `frozen_values` that of frozen parameters (kFloat32 or kBFloat16), which have no states. `nf4` says whether the
// values of some of them are in 4 bits.
std::vector<PartSpec> PartsOf(SavedValues values, SavedValues frozen_values, absl::Span<const SavedState> states,
                              bool nf4 = false);

struct SavedParameter {
  std::string name;
  std::vector<int64_t> shape;
  bool frozen = false;   // It did not train.
  bool nf4 = false;      // Its values are saved as kNf4.
  bool in_base = false;  // Its values are not saved, but those of Manifest::base, in the form that ValuesOf says.
  // Which of Manifest::states it has, ascending, if it trains. Empty optional: all of them.
  std::optional<std::vector<int64_t>> states = std::nullopt;

  int64_t elements() const;
  bool operator==(const SavedParameter&) const = default;
};

// The tokens of one source of data.
struct SavedSource {
  std::string path;     // For messages: the same tokens elsewhere are the same source.
  int64_t tokens = 0;   // How many there are.
  uint64_t digest = 0;  // Of all tokens in their order (TokenSource::TokensDigest).
  // Of where documents begin, if they decide the samples (TokenSource::DocumentsDigest); else 0.
  uint64_t documents = 0;

  bool operator==(const SavedSource&) const = default;
};

// Everything that decides which sample a position in the data means.
struct SavedData {
  int64_t samples_per_epoch = 0;
  int64_t sequence_length = 0;  // Tokens.
  bool shuffled = false;
  uint64_t seed = 0;
  std::string tokenizer;     // Distinguishes one tokenizer from another. Own data of a program has its name here.
  std::string source_state;  // DataSource::StateAt of the position; empty if the source has none.
  int64_t begin = 0;         // Samples that the run took from other data before (Trainer::SetData).
  // data.path, and then those of data.mix. None of own data of a program, and in checkpoints from before there were
  // any.
  std::vector<SavedSource> sources;

  bool operator==(const SavedData&) const = default;
};

// The evaluations of a run so far, if it follows them (checkpoint.keep_best, checkpoint.patience).
struct SavedEvaluations {
  std::string data;                 // What was evaluated. Losses of other data cannot be compared with these.
  int64_t last_step = -1;           // The step of the last evaluation; -1: there was none.
  std::optional<double> last_loss;  // Its loss; empty if it was not finite.
  int64_t best_step = 0;            // The step of the evaluation with the lowest loss, the first of equal ones.
  std::optional<double> best_loss;  // Its loss; empty if no loss was finite.
  int64_t since_best = 0;           // Evaluations after that; all if no loss was finite.

  bool operator==(const SavedEvaluations&) const = default;
};

// The model that stays as it is while its adapters train. A checkpoint of adapters alone refers to it.
struct SavedBase {
  std::string folder;   // The Hugging Face folder from which the run read it.
  uint64_t digest = 0;  // A ValuesDigest of its parameters (engine/files/checkpoint/base_values.h).

  bool operator==(const SavedBase&) const = default;
};

struct SavedFile {
  std::string name;  // Name in the checkpoint's folder.
  int64_t size_bytes = 0;
  std::vector<uint32_t> chunk_crcs;  // CRC-32C of each kCheckpointChunkBytes; the last chunk may be shorter.

  bool operator==(const SavedFile&) const = default;
};

// Dynamic loss scaling after the last step.
struct SavedLossScale {
  double factor = 0;       // That of the next step. 0: the run has no loss scale.
  int64_t good_steps = 0;  // Updates in a row since it changed.
  int64_t skips = 0;       // Steps in a row that were skipped because a gradient was not finite.

  bool operator==(const SavedLossScale&) const = default;
};

struct Manifest {
  int64_t step = 0;          // Optimizer steps done.
  int64_t tokens = 0;        // Valid target tokens so far.
  int64_t samples = 0;       // Samples taken so far, over all epochs.
  int64_t update_count = 0;  // Updates applied: steps minus skipped updates.
  double previous_norm = 0;  // The norm by which the next step is clipped (Clipping::kPreviousNorm). 0: none.
  SavedLossScale loss_scale;
  uint64_t seed = 0;  // Seed of everything random; the generators are counters without other state.
  std::string job;    // The resolved job as textproto.
  SavedData data;
  int64_t ranks = 0;                                  // The number of files.
  std::string strategy, accumulation;                 // For people; reading a checkpoint does not depend on them.
  SavedValues values = SavedValues::kFloat32;         // Of parameters that train.
  SavedValues frozen_values = SavedValues::kFloat32;  // Of frozen parameters without nf4; kFloat32 if there are none.
  std::vector<SavedState> states = AdamWStates();     // Of all parameters. Those of one have different names.
  std::vector<SavedParameter> parameters;
  std::vector<SavedFile> files;  // In rank order.
  SavedEvaluations evaluations;
  std::optional<SavedBase> base;  // Where the parameters are that are in_base. Empty: none is.

  // Returns the loss of the evaluation after this step, if there was one, and its loss was finite.
  std::optional<double> evaluation_loss() const {
    return evaluations.last_step == step ? evaluations.last_loss : std::nullopt;
  }
  uint32_t job_crc() const;  // CRC-32C of `job`.
  std::vector<PartSpec> parts() const;
  // Returns the form in which the values of a parameter are saved.
  SavedValues ValuesOf(const SavedParameter& parameter) const {
    return parameter.nf4 ? SavedValues::kNf4 : parameter.frozen ? frozen_values : values;
  }
  // Returns the states of a parameter, none if it is frozen.
  std::vector<SavedState> StatesOf(const SavedParameter& parameter) const;
  // Returns how many elements a part has of a parameter that has the part.
  int64_t ElementsOf(SavedPart part, const SavedParameter& parameter) const;
  // Returns whether the checkpoint has this part of a parameter.
  bool Has(SavedPart part, const SavedParameter& parameter) const;
  bool operator==(const Manifest&) const = default;
};

// Returns a name such as "rank-00003-of-00008.shard".
std::string ShardFileName(int64_t rank, int64_t ranks);

// SerializeFiles returns the records of files as bytes, for sending them to another process. ParseFiles returns the
// records in such bytes, or InvalidArgument if the bytes are malformed.
std::string SerializeFiles(const std::vector<SavedFile>& files);
absl::StatusOr<std::vector<SavedFile>> ParseFiles(absl::string_view bytes);

// Returns the bytes of a MANIFEST: "SHALEMAN", u32 version, u32 CRC-32C of everything else, u64 length, message.
std::string SerializeManifest(const Manifest& manifest);

// Returns InvalidArgument, without a path, if a manifest contradicts itself: negative counts or counts above 2^60,
// evaluations after the step or with a loss that is not finite, a dimension below 1, a shape whose elements cannot be
// counted, a name used twice, more than kMaxSavedStates states, a parameter with a state that there is not or with two
// states of a name, frozen values saved as SPLIT, values in 4 bits of a parameter that trains, a parameter that trains
// in the base, a base without parameters, parameters of the base without a base, a file with another name than
// ShardFileName gives or with another number of checksums than its size requires.
absl::Status CheckManifest(const Manifest& manifest);

// Accepts any bytes. Returns InvalidArgument, without a path, for bytes that are not a manifest, are damaged, have more
// parameters or files than the limits below, have a state of an unknown type, or contradict themselves (CheckManifest).
// Returns Unimplemented for another version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes);

// The largest size of a MANIFEST that is read, and the most parameters and files that it may have. The reader checks
// these limits before it builds anything.
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxSavedParameters = int64_t{1} << 18;
inline constexpr int64_t kMaxSavedFiles = int64_t{1} << 20;
inline constexpr int64_t kMaxSavedSources = 1000;

}  // namespace shale
