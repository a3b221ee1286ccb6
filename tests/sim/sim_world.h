// tests/sim/sim_world.h: several nodes and clients in one thread on virtual time, with seeded faults.
//
// Every block's bytes are a pseudo-random function of its name, so any wrong byte that is delivered is seen. What must
// hold, checked at every step: delivered bytes equal PRF(name); every call ends by its deadline;
// each Store's invariants (no slot reused while referenced, accounted bytes equal arena bytes); queues within their
// bounds; what nobody drops stays until it is evicted; and when the faults stop, everything works again.
//
// A node restarts under the same id, cleanly or not, while clients keep what they know of it, and its namespaces are
// opened in another order. Chains are cut into extents of a length that each world draws; in some worlds one worker
// draws another, as where two versions of a cluster map are in force at once. Some namespaces are named by engines' own
// hashes, which are equal in several namespaces.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/client.h"
#include "tests/fakes/sim_network.h"
#include "tests/sim/sim_node.h"

namespace kv::sim {

struct WorldOutcome {
  std::string failure;  ///< Empty: all invariants held.
  std::uint64_t calls = 0, hit_blocks = 0, stored_blocks = 0, missed_deadlines = 0, corrupt_blocks = 0,
                evicted_blocks = 0, spilled_blocks = 0, disk_blocks_got = 0, rdma_packets = 0, kept_drops = 0;
  std::uint64_t set_blocks_got = 0, set_blocks_stored = 0, set_blocks_too_long = 0, set_conflicts = 0,
                set_groups_got = 0;
  std::uint64_t kills = 0, stops = 0, freezes = 0, breaks = 0, audited_restarts = 0;
  std::uint64_t kept_beside_drops = 0;  ///< Looks at a namespace that nobody drops, on a node where others were.
  std::uint64_t trace_hash = 0;         ///< Of all that happened, in order: equal for equal seeds.
};

/// Runs one seed to its end. About 300 calls in some 10 virtual seconds.
WorldOutcome run_world(std::uint64_t seed);

}  // namespace kv::sim
