// store/node/machine/disk_path.h: checks the place of a new directory of the disk tier.
//
// A node makes such a directory, but no parents. A mistyped name, or one below an unmounted disk, would otherwise be a
// place on the root file system, and a live change would move all blocks there.
#pragma once

#include <filesystem>
#include <string>

namespace kv {

/// Returns "", or why the node refuses the directory: its parent is missing, or the name is a file's. A place that
/// cannot be checked (the device fails or hangs, no permission) is accepted: the node tries, and reports the failure.
std::string check_disk_path(const std::filesystem::path& path);

/// For a missing directory, names the file system it would be on. "" if it exists.
std::string new_disk_path(const std::filesystem::path& path);

}  // namespace kv
