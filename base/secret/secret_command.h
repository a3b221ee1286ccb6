// base/secret/secret_command.h: secrets printed by a command: from a KMS, a TPM, a vault.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/result.h"
#include "base/secret/secret.h"

namespace kv {

/// The standard output of `command`, run by /bin/sh, without trailing white space. The command has this process's
/// environment and standard error, and empty input; other descriptors are closed. After `time_max` it is killed, with
/// its process group. Errors: the system's; kBadRequest (a status other than 0, or more than `bytes_max` bytes);
/// asio::error::timed_out. Blocks until the command has ended. Thread safety: any.
Result<Secret, Failure> read_secret_command(const std::string& command, std::size_t bytes_max,
                                            std::chrono::milliseconds time_max);

}  // namespace kv
