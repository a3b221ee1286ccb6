// transport/token.h: bearer tokens, which identify a client to a node's policy.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret/secret.h"

namespace kv {

/// A token is drawn at random (openssl rand -hex 32): only that makes its hash useless to a reader.
inline constexpr std::size_t kTokenBytesMin = 32, kTokenBytesMax = 512;

/// Describes the error in a token without quoting it; empty: valid.
std::string check_token(std::string_view token);
/// The token in a file, without trailing white space. Errors: system errors, kBadRequest, never quoting it.
Result<Secret, Failure> read_token_file(const std::string& path);

}  // namespace kv
