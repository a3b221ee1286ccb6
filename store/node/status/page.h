// store/node/status/page.h: the status page's text, and its browser policy.
#pragma once

#include <string>

namespace kv {

/// One self-contained document (store/node/page/), which works without other networks.
struct StatusPage {
  std::string html;
  /// Content-Security-Policy: only the page's own script and style, by their SHA-256, and answers of this server.
  std::string policy;
};
const StatusPage& status_page();  ///< Made once.

}  // namespace kv
