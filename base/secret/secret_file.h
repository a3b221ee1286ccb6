// base/secret/secret_file.h: small files that only their owner may read, such as keys.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "base/secret/secret.h"

namespace kv {

/// The file's content, at most `bytes_max` bytes, without trailing white space. Errors: system errors, kBadRequest; the
/// text names the file, but omits its content. Refuses files that are not regular, that users besides the owner may
/// read or write, or that belong to a user other than this process's or root. A group may read root's files: packages
/// lay out keys for a service's group this way.
Result<Secret, Failure> read_secret_file(const std::string& file, std::size_t bytes_max);
/// Whether read_secret_file would now refuse the file for its owner or mode. A missing file is not exposed.
bool is_secret_file_exposed(const std::string& file);

}  // namespace kv
