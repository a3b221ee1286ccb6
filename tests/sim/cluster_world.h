// tests/sim/cluster_world.h: a cluster whose nodes come and go, in one thread on virtual time, with seeded faults.
//
// sim_world.h has nodes that are simply there. Here they are members: each with its lease in a simulated etcd, its view
// of the list, and its mover; clients are told of one or two nodes and follow. What happens: joins, drains, clean
// leaves, kills, machines that go without a word, restarts with and without a disk; ways cut between clients, nodes and
// etcd, also one way only; etcd away for minutes, set up anew, or with a member that is behind; a hot set that changes;
// members that tell clients maps of their own making, and entries of the list that no node has written.
//
// What must hold, besides what sim_world.h has: epochs never fall at a node, nor at a client as long as all nodes have
// told the truth and etcd kept its word; no get waits for a node that its client knows to be dead; no lent memory is
// written to after its call; what was handed over and copied is counted as what was stored. Once the faults stop, all
// nodes and clients agree within a bounded time. Then, step by step: what was put is found by everybody while nodes
// join, leave and drain, while etcd is away and when it comes back empty; and where there are second copies, when a
// node is killed.
#pragma once

#include <cstdint>
#include <string>

namespace kv::sim {

struct ClusterOutcome {
  std::string failure;  ///< Empty: all invariants held.
  std::uint64_t calls = 0, hit_blocks = 0, stored_blocks = 0, moved_blocks = 0, copied_blocks = 0, hot_blocks = 0;
  std::uint64_t epochs = 0, joins = 0, leaves = 0, kills = 0, power_losses = 0, cuts = 0, etcd_outages = 0,
                etcd_losses = 0;
  std::uint64_t lies = 0, made_up_entries = 0;
  std::uint64_t bounded_gets = 0;     ///< While a node was known to be dead, and nothing else was wrong.
  std::uint64_t exact_worlds = 0;     ///< In which all that was stored was accounted for.
  std::uint64_t audited_changes = 0;  ///< During which everything was found.
  std::uint64_t audited_kills = 0;    ///< After which everything was found.
  std::uint64_t kept_chains = 0, excused_chains = 0;  ///< Looked for by all; found in part, after their roots changed.
  std::uint64_t hedges = 0, hedge_wins = 0;
  std::uint64_t trace_hash = 0;  ///< Of all that happened, in order: equal for equal seeds.
};

/// Runs one seed to its end: some minutes of virtual time.
ClusterOutcome run_cluster_world(std::uint64_t seed);

}  // namespace kv::sim
