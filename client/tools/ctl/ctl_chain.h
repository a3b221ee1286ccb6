// client/tools/ctl/ctl_chain.h: a namespace and a chain, as named on the command line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/tools/tool_client.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"

namespace kv {

struct ChainOptions {
  std::string record_file, space, hash_file;
  std::vector<std::string> hashes;
  std::string token_file;
};

/// --namespace, --record, --hashes and hashes as words.
void add_chain_options(CLI::App& command, ChainOptions& options);
// These throw messages for main(): an unreadable file, a word that is not a hash, an unknown namespace.
NamespaceRecord find_record(ToolClient& client, const ConnectionOptions& node, const ChainOptions& options);
std::vector<BlockHash> parse_hashes(const ChainOptions& options);
std::vector<std::uint32_t> parse_tokens(const ChainOptions& options);
std::vector<BlockHash> hash_tokens(const NamespaceRecord& record, std::span<const std::uint32_t> tokens);
/// The given hashes, or those of the file of tokens.
std::vector<BlockHash> chain_of(const NamespaceRecord& record, const ChainOptions& options);

}  // namespace kv
