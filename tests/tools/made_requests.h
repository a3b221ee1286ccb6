// tests/tools/made_requests.h: requests of a synthetic load.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "client/tools/bench/loads/load.h"

namespace kv {

inline std::vector<TraceRequest> make_requests(LoadKind kind, std::uint64_t request_count, std::uint64_t seed) {
  Load load(kind, request_count, seed);
  std::vector<TraceRequest> requests;
  while (auto request = load.next()) requests.push_back(*std::move(request));
  return requests;
}

}  // namespace kv
