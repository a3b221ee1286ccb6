// store/node/status/page.h: the status page's text, and what a browser may do with it.
#pragma once

#include <string>

namespace kv {

/// One document with all that it needs inside (store/node/page/): it works where there is no other network.
struct StatusPage {
  std::string html;
  /// Content-Security-Policy: the page's own script and style by their SHA-256, answers of this server, nothing else.
  std::string policy;
};
const StatusPage& status_page();  ///< Made once.

}  // namespace kv
