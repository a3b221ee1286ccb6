// store/node/session/core/greeting.h: hello, a client's first frame: which version it speaks, and who it is.
#pragma once

#include "store/node/session/core/session_core.h"
#include "store/node/session/core/session_rdma.h"

namespace kv {

/// Identifies the client, sets the limits of its frames, and answers. False after refusing it.
bool greet(SessionCore& session, FrameReader& reader, const SessionRdma& rdma, const FrameReader::Frame& frame);

}  // namespace kv
