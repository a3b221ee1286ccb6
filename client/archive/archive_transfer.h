// client/archive/archive_transfer.h: a named context from nodes to a file, and from a file to nodes.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "client/client_thread.h"
#include "client/context_archive.h"

namespace kv {

// Both block the calling thread, which does the files; the client's thread does the rest. At most a batch of blocks
// (kArchiveBatchBytes, or one block) is in memory, and 40 bytes and more of each block of the context.
inline constexpr std::size_t kArchiveBatchBytes = 16 << 20;

/// Errors: kNotFound, kMismatch, kUnsupported as Client::tell_context(); kNotFound too where blocks are not there; of
/// the nodes, of the file. The words say which. Then there is no file, and one that was there is as it was.
Result<ArchivedContext, Failure> export_context(ClientThread& client, std::string_view name, const std::string& file,
                                                const ContextExportOptions& options);
/// The whole file is checked before any of it goes to a node: a damaged one leaves nothing behind. Only with a key is
/// it known who has made the file: checksums and digests are anybody's to make, and what is believed becomes a hit.
/// Then blocks are put, and then the context is created, in place of one of that name. Errors: as of check_archive(),
/// of Client::put() and create_context(); what was put until then is there, and ages.
Result<ArchivedContext, Failure> import_context(ClientThread& client, const std::string& file,
                                                const ContextImportOptions& options);

}  // namespace kv
