// base/standard_streams.h: descriptors 0, 1 and 2, whatever a program was started with.
#pragma once

namespace kv {

/// Opens /dev/null for each of the three that is closed. A closed number would go to the next file or socket that the
/// program opens, and its own output into that. First in main(), before other threads.
void open_standard_streams();

}  // namespace kv
