// client/types/context_archive.h: a named context as a file, to create it on another cluster
// (docs/contexts.md#a-context-as-a-file): options and results of export_context() and import_context()
// (archive/archive_transfer.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "client/types/context_types.h"

namespace kv {

/// Progress report. Returning false ends the transfer with kCancelled and without a file.
struct ArchiveProgress {
  enum class Step : std::uint8_t { kRead, kCheck, kPut };
  Step step;  ///< kRead: from nodes to the file. kCheck: of the file. kPut: from the file to nodes.
  std::size_t blocks = 0, of = 0;
};
using ArchiveGoOn = std::function<bool(const ArchiveProgress&)>;

struct ContextExportOptions {
  std::chrono::microseconds deadline;  ///< Of each call to the nodes. No default: choose.
  bool is_partial = false;             ///< If blocks are missing, export those before the first missing one.
  bool replaces = false;               ///< Replace an existing file.
  /// A file with a key of 64 hexadecimal digits, which signs the export. Empty: the file named by the environment
  /// variable KVSTORE_ARCHIVE_KEY_FILE; without it the export is unsigned.
  std::string key_file = {};
  ArchiveGoOn go_on = nullptr;
};

struct ContextImportOptions {
  std::chrono::microseconds deadline;  ///< Of each call to the nodes. No default: choose.
  std::string name = {};               ///< Empty: as in the file; likewise below.
  std::optional<ContextTime> life = std::nullopt;
  std::optional<std::uint8_t> priority = std::nullopt;
  /// As for an export. With a key, a file that it has not signed is refused with kPermissionDenied.
  std::string key_file = {};
  ArchiveGoOn go_on = nullptr;
};

struct ArchivedContext {
  std::string name;
  std::string namespace_id;                     ///< Hexadecimal.
  std::uint64_t blocks = 0, wanted_blocks = 0;  ///< In the file; in the exported context.
  std::uint64_t bytes = 0;                      ///< Of the file.
  bool is_signed = false;                       ///< By the key; on an import without a key, by any key.
  std::uint64_t stored_blocks = 0;              ///< Import: blocks new to the nodes.
  NamedContext context;                         ///< Its state at the export, or after the import.
};

}  // namespace kv
