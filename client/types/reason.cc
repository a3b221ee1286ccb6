#include "client/types/reason.h"

#include <cstddef>

#include "base/text/printable.h"

namespace kv {

std::string reason_of(error_code why, std::span<const NodeStatus> nodes) {
  constexpr std::size_t kNamedMax = 3;
  std::string text;
  std::size_t count = 0;
  for (const NodeStatus& node : nodes) {
    const bool is_meant = why == Errc::kUnavailable ? !node.connected : bool(node.last_error) && node.last_error == why;
    if (!is_meant || ++count > kNamedMax) continue;
    text += text.empty() ? "" : "; ";
    text +=
        node.endpoint + ": " + (node.last_error_text.empty() ? "not connected yet" : printable(node.last_error_text));
  }
  if (count > kNamedMax) text += "; and " + std::to_string(count - kNamedMax) + " more nodes";
  return text;
}

}  // namespace kv
