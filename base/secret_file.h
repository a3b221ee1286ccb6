// base/secret_file.h: small files that nobody but their owner may read: keys and the like.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "base/secret.h"

namespace kv {

/// What is in the file, at most `bytes_max` of it, without white space at its end. Errors: system errors, kBadRequest;
/// the words name the file, and no part of what is in it. Refused: what is no regular file, what others than its owner
/// may read or write, and what belongs to somebody else than this process's user or root. A group may read what root
/// owns, as with keys that a package lays out for a service's group.
Result<Secret, Failure> read_secret_file(const std::string& file, std::size_t bytes_max);
/// Whether read_secret_file would refuse the file for its owner or mode now. A file that is not there is not exposed.
bool is_secret_file_exposed(const std::string& file);

}  // namespace kv
