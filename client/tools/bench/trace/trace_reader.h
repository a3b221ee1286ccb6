// client/tools/bench/trace/trace_reader.h: recorded requests: JSON lines, plain or gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kv {

struct TraceRequest {
  std::uint64_t timestamp_ms = 0;
  std::uint64_t input_length = 0, output_length = 0;  ///< Tokens.
  std::vector<std::uint64_t> hash_ids;  ///< One per block of the input; an id names the block and its whole prefix.
};

/// Up to `request_count_max` requests (0: all). Throws std::runtime_error that names the file, the line and the field.
std::vector<TraceRequest> read_trace(const std::string& path, std::size_t request_count_max);

}  // namespace kv
