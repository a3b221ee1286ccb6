#include "client/python/src/calls/client_config.h"

#include <nanobind/stl/string.h>

#include <utility>

#include "transport/tls/tls_identity.h"

namespace kv::python {

ClientConfig config_of(const std::vector<nb::object>& nodes, const nb::dict& tls, const nb::str& token,
                       const std::string& token_file) {
  ClientConfig config;
  for (const nb::object& node : nodes) {
    NodeConfig& added = config.nodes.emplace_back();
    if (nb::isinstance<nb::str>(node)) {
      added.endpoint = nb::cast<std::string>(node);
      continue;
    }
    const auto parts = nb::cast<nb::tuple>(node);
    added.endpoint = nb::cast<std::string>(parts[0]);
    if (parts.size() > 1 && !parts[1].is_none()) added.name = nb::cast<std::string>(parts[1]);
    if (parts.size() > 2) added.weight = nb::cast<double>(parts[2]);
  }
  for (const auto& [name, to] : {std::pair("cert", &config.tls.cert_file), std::pair("key", &config.tls.key_file),
                                 std::pair("ca", &config.tls.ca_file), std::pair("crl", &config.tls.crl_file),
                                 std::pair("server_name", &config.tls.server_name)}) {
    *to = nb::cast<std::string>(tls[name]);
  }
  config.tls.node_names = split_patterns(nb::cast<std::string>(tls["names"]));
  if (nb::len(token) > 0) config.token = Secret(token.c_str());
  config.token_file = token_file;
  return config;
}

}  // namespace kv::python
