// The choices that a job makes about its data.
#pragma once

#include <cstdint>

namespace shale {

// How many samples in a row have exact shares of their sources (data.mix).
inline constexpr int64_t kMixWindow = 1000;

// The order is that of DataSpec.Format in proto/job/data.proto.
enum class DataFormat {
  kByContent,  // The format that recognizes the content of the file, or kText if none does.
  kText,       // UTF-8 text; every byte is a token, unless there is a tokenizer.
  kLlmc,       // Token files of llm.c: a header of 1,024 bytes, then 16-bit (GPT-2) or 32-bit (Llama-3) tokens.
  kMegatron,   // Token files of Megatron-LM: an index (.idx), and the tokens beside it (.bin).
  kJsonLines,  // Lines of JSON with text, for a tokenizer. Has no entry of its own (data_format.h).
  kNpy,        // NumPy's .npy files, each an array of tokens with one dimension.
};

// What becomes of documents that are shorter or longer than a sequence. The order is that of DataSpec.Packing in
// proto/job/data.proto.
enum class Packing {
  kCut,   // The documents form one row of tokens, which is cut into sequences.
  kPack,  // A sequence holds several documents, none of which sees another.
  kPad,   // A sequence holds one document, and padding that does not count.
};

// What becomes of documents that are longer than a sequence, with kPack and kPad. The order is that of
// DataSpec.LongDocuments in proto/job/data.proto.
enum class LongDocuments {
  kSplit,     // They are cut into parts, each of which counts as a document.
  kTruncate,  // Only the first part is kept.
  kDrop,      // They are left out.
};

enum class DataOrder {
  kShuffled,    // One permutation of the samples per seed and epoch.
  kSequential,  // The same order in every epoch: sample i is at place i.
};

// Which tokens of the rows of JSON Lines count in the loss. Those of text always do.
enum class LossOn {
  kCompletions,  // The completion of a prompt, and what the assistant says in a conversation.
  kAll,
};

// What becomes of text that a row says and that spells a special token, such as "<|endoftext|>".
enum class SpelledTokens {
  kInMessages,  // It becomes the token in messages, as in transformers, and stays text in other rows.
  kInAllRows,   // It becomes the token.
  kRefuse,      // Such a row is a bad line.
};

// What becomes of a line of JSON Lines that is no row of data.
enum class BadLines {
  kRefuse,  // It is an error.
  kSkip,    // It is left out and counted.
};

// What becomes of bytes of text that are not UTF-8.
enum class BadBytes {
  kFail,     // They are an error.
  kReplace,  // U+FFFD takes their place, as with errors="replace" in Python, and they are counted.
};

// Which files of a folder are taken.
enum class Splits {
  kByName,    // Those of one split, if their names say of which split they are (ListDataFiles).
  kTogether,  // All, whatever split their names say.
};

// Which files of a folder are data (ListDataFiles in engine/files/data/data_files.h).
struct DataFilesOptions {
  // What the files must be. kByContent: text, rows or tokens, but one of these in a folder. kText and kJsonLines: the
  // files are read as such, whatever their content is.
  DataFormat format = DataFormat::kByContent;
  Splits splits = Splits::kByName;
  // Whether the data is for evaluation. If the files of a folder name splits, takes validation or test, not train.
  bool for_evaluation = false;
  // Whether a file named *.list is a list of files and folders, one in a line, relative to the folder of the list.
  bool lists = false;
};

}  // namespace shale
