// client/archive/archive_file.h: a file that appears whole or not at all, and one that is read from the front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "client/archive/archive_form.h"

namespace kv {

/// Written under a temporary name in the same folder, readable by its owner only, and renamed by commit(). Destroyed
/// before that, it leaves no file. Error texts name the file.
class NewArchiveFile {
 public:
  static Result<NewArchiveFile, Failure> create(const std::string& path, bool replaces);
  NewArchiveFile(NewArchiveFile&& other) noexcept;
  NewArchiveFile& operator=(NewArchiveFile&&) = delete;
  ~NewArchiveFile();

  Result<void, Failure> write(std::span<const std::byte> bytes);
  /// Makes it durable, whole, under its name. A file created there meanwhile is an error, unless it may be replaced.
  Result<void, Failure> commit();

 private:
  NewArchiveFile(std::string path, std::string folder, std::string temporary, bool replaces, int file)
      : path_(std::move(path)),
        folder_(std::move(folder)),
        temporary_(std::move(temporary)),
        replaces_(replaces),
        file_(file) {}
  std::string path_, folder_, temporary_;
  bool replaces_ = false;
  int file_ = -1;
};

class OldArchiveFile final : public ArchiveSource {
 public:
  static Result<OldArchiveFile, Failure> open(const std::string& path);
  OldArchiveFile(OldArchiveFile&& other) noexcept;
  OldArchiveFile& operator=(OldArchiveFile&&) = delete;
  ~OldArchiveFile() override;

  Result<std::size_t, Failure> read(std::span<std::byte> to) override;
  Result<void, Failure> go_to(std::uint64_t at);

 private:
  OldArchiveFile(std::string path, int file) : path_(std::move(path)), file_(file) {}
  std::string path_;
  int file_ = -1;
};

}  // namespace kv
