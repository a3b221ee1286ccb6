// store/node/disk/disk_opener.h: from the directories that an operator names to the one disk that the tier uses.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"

namespace kv {

/// Opens a RocksDisk in each directory, all at a time; several are striped (striped_disk.h). A directory keeps the
/// place in the keys that it was first given, whatever the order of `paths`; a new one takes the lowest that is free.
/// Errors: those of RocksDisk::open, of any of them; kMismatch if two have the same place: they come from two nodes.
/// `paths`: 1 to kPlaceCount. Keeps a reference to the clock.
/// `patience`: of several directories, one whose call takes longer is left out until it answers.
OpenDisk disk_opener(std::vector<std::string> paths, Clock& clock, Duration patience = 2s);

}  // namespace kv
