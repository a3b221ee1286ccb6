// store/node/request_phases.h: where a request's time went.
#pragma once

#include "base/clock.h"

namespace kv {

/// Measured only where a clock is read anyway, or something is waited for. The rest is known once the whole is.
struct RequestPhases {
  Duration lock{};   ///< Waiting for the Store's lock.
  Duration store{};  ///< In the Store, under it.
  Duration room{};   ///< Waiting for memory to put blocks into.
  Duration disk{};
  Duration move{};    ///< Moving bytes: copies, RDMA.
  Duration client{};  ///< Waiting for the client to send bytes, or to take them.

  Duration sum() const { return lock + store + room + disk + move + client; }
};

}  // namespace kv
