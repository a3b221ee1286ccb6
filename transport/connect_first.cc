#include "transport/connect_first.h"

#include <algorithm>

namespace kv {

std::vector<asio::ip::tcp::endpoint> alternate_families(std::vector<asio::ip::tcp::endpoint> addresses) {
  if (addresses.empty()) return addresses;
  const bool begins_with_v6 = addresses.front().address().is_v6();
  const auto other = std::stable_partition(addresses.begin(), addresses.end(),
                                           [&](const auto& each) { return each.address().is_v6() == begins_with_v6; });
  std::vector<asio::ip::tcp::endpoint> ordered;
  ordered.reserve(addresses.size());
  for (auto first = addresses.begin(), second = other; first != other || second != addresses.end();) {
    if (first != other) ordered.push_back(*first++);
    if (second != addresses.end()) ordered.push_back(*second++);
  }
  return ordered;
}

}  // namespace kv
