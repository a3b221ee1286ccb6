// transport/token.h: bearer tokens, by which a node's policy may know a client.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"

namespace kv {

/// A token is drawn at random (openssl rand -hex 32): nothing else makes its hash worth nothing to who reads it.
inline constexpr std::size_t kTokenBytesMin = 32, kTokenBytesMax = 512;

/// What is wrong with a token, without a part of it in the words; empty: nothing.
std::string check_token(std::string_view token);
/// The token that is all a file holds but for white space at its end. Errors: system errors, kBadRequest; the words
/// name the file, and no part of what is in it.
Result<Secret, Failure> read_token_file(const std::string& path);

}  // namespace kv
