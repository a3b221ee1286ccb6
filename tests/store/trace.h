// tests/store/trace.h: a real request trace, if there is one.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace kv {

inline constexpr const char* kNoTrace = "KV_TRACES names no folder with conversation_trace.jsonl.gz";

/// The `hash_ids` of each request of the conversation trace, in order; nullopt without KV_TRACES.
inline std::optional<std::vector<std::vector<std::uint64_t>>> conversation_trace() {
  const char* folder = std::getenv("KV_TRACES");
  if (folder == nullptr) return std::nullopt;
  const gzFile file = gzopen((std::string(folder) + "/conversation_trace.jsonl.gz").c_str(), "rb");
  if (file == nullptr) return std::nullopt;
  std::string text;
  char buffer[65536];
  for (int got = 0; (got = gzread(file, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  gzclose(file);
  std::vector<std::vector<std::uint64_t>> requests;
  for (std::size_t at = text.find("\"hash_ids\""); at != std::string::npos; at = text.find("\"hash_ids\"", at)) {
    at = text.find('[', at) + 1;
    auto& ids = requests.emplace_back();
    while (text[at] != ']') {
      char* end = nullptr;
      ids.push_back(std::strtoull(text.data() + at, &end, 10));
      at = static_cast<std::size_t>(end - text.data());
      while (text[at] == ',' || text[at] == ' ') ++at;
    }
  }
  return requests;
}

}  // namespace kv
