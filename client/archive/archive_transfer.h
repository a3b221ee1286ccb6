// client/archive/archive_transfer.h: a named context from nodes to a file, and from a file to nodes.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "client/blocking_client.h"
#include "client/types/context_archive.h"

namespace kv {

// Both block the calling thread, which handles the files. Memory: at most a batch of
// blocks (kArchiveBatchBytes, or one block), and 40 bytes and more per block of the context.
inline constexpr std::size_t kArchiveBatchBytes = 16 << 20;

/// Errors: kNotFound, kMismatch, kUnsupported as Client::tell_context(); kNotFound also for missing blocks; of the
/// nodes, of the file, as the text says. Then the file is not created, and an existing one is unchanged.
Result<ArchivedContext, Failure> export_context(BlockingClient& client, std::string_view name, const std::string& file,
                                                const ContextExportOptions& options);
/// Checks the whole file before sending any of it: a damaged one has no effect. Only a key proves who wrote the file:
/// checksums and digests can be forged, and accepted blocks become hits. Then puts the blocks, and creates the context,
/// replacing one of that name. Errors: as check_archive(), Client::put() and create_context(); blocks put before stay.
Result<ArchivedContext, Failure> import_context(BlockingClient& client, const std::string& file,
                                                const ContextImportOptions& options);

}  // namespace kv
