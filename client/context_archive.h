// client/context_archive.h: a named context as a file, to have the same prefix on another cluster
// (docs/contexts.md#a-context-as-a-file). BlockingClient::export_context() and import_context() take and give these.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/context_types.h"

namespace kv {

/// How far it is. False: it is to end, with kCancelled, and leaves no file.
struct ArchiveProgress {
  enum class Step : std::uint8_t { kRead, kCheck, kPut };
  Step step;  ///< kRead: from nodes to the file. kCheck: of the file. kPut: from the file to nodes.
  std::size_t blocks = 0, of = 0;
};
using ArchiveGoOn = std::function<bool(const ArchiveProgress&)>;

struct ContextExportOptions {
  std::chrono::microseconds deadline;  ///< Of each call to the nodes. No default: choose.
  bool is_partial = false;             ///< Where blocks are missing, what is there before the first of them.
  bool replaces = false;               ///< A file of that name.
  /// Of a file with a key of 64 hexadecimal digits, which signs the export. Empty: that of the environment variable
  /// KVSTORE_ARCHIVE_KEY_FILE; without it nothing is signed.
  std::string key_file = {};
  ArchiveGoOn go_on = nullptr;
};

struct ContextImportOptions {
  std::chrono::microseconds deadline;  ///< Of each call to the nodes. No default: choose.
  std::string name = {};               ///< Empty: as in the file, and so what follows.
  std::optional<ContextTime> life = std::nullopt;
  std::optional<std::uint8_t> priority = std::nullopt;
  /// As for an export. With a key, what it has not signed is refused with kPermissionDenied.
  std::string key_file = {};
  ArchiveGoOn go_on = nullptr;
};

/// What was exported, or imported.
struct ArchivedContext {
  std::string name;
  std::string namespace_id;                     ///< Hexadecimal.
  std::uint64_t blocks = 0, wanted_blocks = 0;  ///< In the file, of those of the context that was exported.
  std::uint64_t bytes = 0;                      ///< Of the file.
  bool is_signed = false;                       ///< With the key; of an import without one, by somebody.
  std::uint64_t stored_blocks = 0;              ///< Of an import: that the nodes did not have.
  NamedContext context;                         ///< As it was at the export, or is after the import.
};

}  // namespace kv
