// client/archive/archive_file.h: a file that appears whole or not at all, and one that is read from the front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "base/result.h"
#include "client/archive/archive_form.h"

namespace kv {

/// Written under a temporary name in the same folder, readable by its owner only, and renamed by commit(). Destroyed
/// before that, it leaves no file. Error texts name the file.
class NewArchiveFile {
 public:
  NewArchiveFile() = default;
  ~NewArchiveFile();
  NewArchiveFile(const NewArchiveFile&) = delete;
  NewArchiveFile& operator=(const NewArchiveFile&) = delete;

  Result<void, Failure> create(const std::string& path, bool replaces);  ///< First.
  Result<void, Failure> write(std::span<const std::byte> bytes);
  /// Makes it durable, whole, under its name. A file created there meanwhile is an error, unless it may be replaced.
  Result<void, Failure> commit();

 private:
  std::string path_, folder_, temporary_;
  bool replaces_ = false;
  Descriptor file_;
};

class OldArchiveFile final : public ArchiveSource {
 public:
  Result<void, Failure> open(const std::string& path);  ///< First.
  Result<std::size_t, Failure> read(std::span<std::byte> to) override;
  Result<void, Failure> go_to(std::uint64_t at);

 private:
  std::string path_;
  Descriptor file_;
};

}  // namespace kv
