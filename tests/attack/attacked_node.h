// tests/attack/attacked_node.h: the real daemon under attack, well-behaved clients beside, and what must hold after it.
//
// Files of this folder, in reading order:
//   attacked_node.h          this: the node, bystanders, the end that every attack must come to
//   attacker.h               a hostile session that knows the requests
//   *_flood_test.cc ...      attacks on the node, one kind a file
//   cross_tenant_test.cc     a tenant against another one
//   forged_message.h         any request with any table: right, empty, cut, garbage, another's, with huge counts
//   every_message_test.cc    each of them in each state of a session, inside this process
//   hostile_cluster_test.cc  lists of members, files of certificates and passwords that are not what they should be
//   hostile_node.h           a node that lies, over real sockets
//   hostile_*_test.cc        attacks on the client library
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::attack {

/// Whether this build has a sanitizer in it, whose own memory then hides what the node uses.
constexpr bool is_sanitized() { return KV_IS_SANITIZED != 0; }

/// What /proc tells of a process.
struct ProcessUse {
  std::uint64_t rss_bytes = 0, rss_peak_bytes = 0;
  std::size_t descriptor_count = 0;
};
ProcessUse use_of(pid_t process);

/// A client that keeps the rules, on a thread of its own: it puts, matches, gets, touches and drops small chains, one
/// round after another, and complains of each answer that is not right or does not come within kRoundDeadline.
class Bystander {
 public:
  static constexpr std::size_t kBlockBytes = 16 << 10;
  static constexpr std::size_t kBlockCount = 4;
  static constexpr std::chrono::microseconds kRoundDeadline = 10s;  ///< Of one call, on a machine with much to do.

  Bystander(const std::string& endpoint, Transport transport, std::uint64_t number);
  ~Bystander();
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

  /// Waits until `count` more rounds have begun and ended. False after a minute.
  bool wait_for_rounds(std::size_t count);
  /// Empty if all was well so far.
  std::string complaints() const;

 private:
  void run();
  void play_round(std::uint64_t round);
  void expect(bool is_right, const std::string& what);

  e2e::TestClient client_;
  std::uint64_t number_;
  std::vector<BlockHash> kept_;  ///< Pinned: there from first to last.
  std::atomic<bool> stops_{false};
  std::atomic<std::uint64_t> begun_{0}, ended_{0};
  mutable std::mutex mutex_;
  std::string complaints_;
  std::thread thread_;
};

struct AttackBounds {
  std::uint64_t rss_growth_bytes = 64 << 20;  ///< From the node's start to its peak; not looked at in sanitized builds.
  std::uint64_t log_bytes = 256 << 10;        ///< In all.
};

/// A node with one I/O thread, so that whoever is attacked shares it with the attacker, and a bystander over a Unix
/// socket. TearDown() looks whether the attack left anything behind.
class AttackTest : public testing::Test {
 protected:
  /// `options` in addition; of options given twice the last counts.
  void start(std::vector<std::string> options = {});
  void SetUp() override { start(); }
  void TearDown() override;

  /// That bystanders are served, right now.
  void expect_bystanders_served();
  void add_bystander(Transport transport);
  /// Namespaces of the attacker's own: the end drops what they hold.
  static NamespaceRecord record_of(std::size_t block_bytes, const std::string& name);

  AttackBounds bounds;
  std::unique_ptr<e2e::NodeProcess> node;

 private:
  void expect_nothing_left();
  void expect_clean_exit();

  std::vector<std::unique_ptr<Bystander>> bystanders_;
  ProcessUse base_;
};

/// KV_SEED from the environment, or a new one; printed, so that a run can be had again.
std::uint64_t printed_seed();

}  // namespace kv::attack
