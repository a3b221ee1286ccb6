// store/node/log/request_phases.h: the parts of a request's time.
#pragma once

#include "base/clock.h"

namespace kv {

/// Measured only where a clock is read anyway, or at a wait. The rest follows from the total.
struct RequestPhases {
  Duration lock{};   ///< Waiting for the Store's lock.
  Duration store{};  ///< In the Store, under it.
  Duration room{};   ///< Waiting for memory to put blocks into.
  Duration disk{};
  Duration move{};    ///< Moving bytes: copies, RDMA.
  Duration client{};  ///< Waiting for the client to send or take bytes.

  Duration sum() const { return lock + store + room + disk + move + client; }
};

}  // namespace kv
