// Makes token files of llm.c in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace shale {

constexpr int32_t kGpt2Magic = 20240520;
constexpr int32_t kLlama3Magic = 20240801;

// Returns the bytes of a token file. T is uint16_t (GPT-2) or uint32_t (Llama-3).
template <typename T>
std::string LlmcBytes(const std::vector<T>& tokens) {
  const bool gpt2 = sizeof(T) == 2;
  const int32_t header[3] = {gpt2 ? kGpt2Magic : kLlama3Magic, gpt2 ? 1 : 7, static_cast<int32_t>(tokens.size())};
  std::string bytes(1024 + tokens.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), header, sizeof(header));
  if (!tokens.empty()) std::memcpy(bytes.data() + 1024, tokens.data(), tokens.size() * sizeof(T));
  return bytes;
}

}  // namespace shale
