// client/tools/ctl/admin_http.h: a request to a node's admin server.
#pragma once

#include <string>

#include "client/tools/tool_client.h"

namespace kv {

struct HttpAnswer {
  int status = 0;      ///< 0: none.
  std::string reason;  ///< The status line behind its version; or why there is no answer.
  std::string body;
};

bool is_https(const std::string& address);
/// One request, which the server ends by closing, within the deadline and with the certificates of `node`. `address`:
/// HOST:PORT, http://HOST:PORT or https://HOST:PORT; throws CLI::ValidationError for others. `fields`: lines of the
/// head, each with its end.
HttpAnswer ask_http(const ConnectionOptions& node, const std::string& address, const std::string& method,
                    const std::string& target, const std::string& fields = "");
/// Of such an address. Throws as ask_http().
bool is_loopback(const std::string& address);

}  // namespace kv
