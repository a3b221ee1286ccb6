// store/node/machine/spill_place.h: where a directory of the disk tier would come to lie.
//
// A node makes such a directory, and nothing above it. A name with a typo, or below a disk that is not mounted, would
// otherwise be a place on the root file system, and a live change would move all blocks there.
#pragma once

#include <filesystem>
#include <string>

namespace kv {

/// "", or why the node takes no such directory: the directory above is not there, or the name is a file's. What cannot
/// be looked at (a device that fails or hangs, no right to look) is no reason: the node tries, and says so.
std::string check_spill_place(const std::filesystem::path& path);

/// Where the directory is not there yet: which file system it would lie on. "" where it is there.
std::string new_spill_place(const std::filesystem::path& path);

}  // namespace kv
