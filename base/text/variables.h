// base/text/variables.h: the environment variables named KVSTORE_, and their readers.
//
//     KVSTORE_NODE_NAME   an option of kvstore-node, ignored by all others
//     KVSTORE_NAME        a client: kvstorectl, kvstore-bench, the Python package (and scripts of deploy/)
//
// So a shell that has a client's certificate in its environment does not hand it to a node as well.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

/// disk-path: KVSTORE_NODE_DISK_PATH. A leading "node" is not repeated: node-id is KVSTORE_NODE_ID.
std::string node_variable(std::string_view option);

/// Describes each variable that begins with KVSTORE_ but has no meaning for a client: its name, and the likely intended
/// one. Those that begin with KVSTORE_NODE_ are left to the node.
std::vector<std::string> unknown_client_variables(const char* const* environment);
/// The same for a node with these options. Clients' variables are left to them; reports all others that begin with
/// KVSTORE_NODE_ or resemble an option's name.
std::vector<std::string> unknown_node_variables(const char* const* environment, std::span<const std::string> options);

}  // namespace kv
