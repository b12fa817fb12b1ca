// The choices that a job makes about its data.
#pragma once

namespace shale {

enum class DataFormat {
  kByContent,  // kLlmc if there is an llm.c header, else kText. No text begins like that header, which is not UTF-8.
  kText,       // UTF-8 text; every byte is a token.
  kLlmc,       // Token files of llm.c: a header of 1,024 bytes, then 16-bit (GPT-2) or 32-bit (Llama-3) tokens.
};

enum class DataOrder {
  kShuffled,    // One permutation of the samples per seed and epoch.
  kSequential,  // The same in every epoch: sample i is at place i.
};

}  // namespace shale
