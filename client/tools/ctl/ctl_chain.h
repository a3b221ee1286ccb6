// client/tools/ctl/ctl_chain.h: a namespace and a chain, as a person names them on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
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

/// --space, --record, --hashes and hashes as words.
void add_chain_options(CLI::App& command, ChainOptions& options);
// These throw what main() tells: a file that cannot be read, a word that is no hash, a namespace that is not there.
NamespaceRecord find_record(ToolClient& client, const ConnectionOptions& node, const ChainOptions& options);
std::vector<BlockHash> parse_hashes(const ChainOptions& options);
std::vector<std::uint32_t> parse_tokens(const ChainOptions& options);
/// The hashes that were given; or, if a file of tokens was, those of its tokens.
std::vector<BlockHash> chain_of(const NamespaceRecord& record, const ChainOptions& options);

}  // namespace kv
