// client/python/src/calls/client_config.h: a client's nodes and identity, from kvstore._access.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "client/client.h"

namespace kv::python {

namespace nb = nanobind;

/// `nodes`: each an endpoint, or a tuple of endpoint, name and weight. `tls`: its files and names, "" where not set.
ClientConfig config_of(const std::vector<nb::object>& nodes, const nb::dict& tls, const nb::str& token,
                       const std::string& token_file);

}  // namespace kv::python
