// base/variables.h: which environment variables of the name KVSTORE_ mean something, and to whom.
//
//     KVSTORE_NODE_NAME   an option of kvstore-node, and nothing to anybody else
//     KVSTORE_NAME        a client: kvstorectl, kvstore-bench, the Python package (and scripts of deploy/)
//
// So a shell that has a client's certificate in its environment does not hand it to a node as well.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

/// spill-path: KVSTORE_NODE_SPILL_PATH. An option that says "node" itself does not say it twice: node-id is
/// KVSTORE_NODE_ID.
std::string node_variable(std::string_view option);

/// Of each variable that begins with KVSTORE_ and means nothing to a client, in words: its name, and what was meant.
/// Those that begin with KVSTORE_NODE_ are a node's affair.
std::vector<std::string> unknown_client_variables(const char* const* environment);
/// The same of a node that has these options. What means something to clients is theirs; of the rest all that begins
/// with KVSTORE_NODE_ or looks like an option's name is told.
std::vector<std::string> unknown_node_variables(const char* const* environment, std::span<const std::string> options);

}  // namespace kv
