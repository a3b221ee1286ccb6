// store/node/metrics.h: a node's counters, for Prometheus. docs/operating.md explains the values and when to act.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/node/policy/access_table.h"
#include "store/store.h"
#include "transport/frames/frame.h"

namespace kv {

/// Why a session ended, as a label.
enum class SessionEnd : std::uint8_t {
  kPeerClosed,
  kBadFrame,
  kHelloTimeout,
  kSlowFrame,
  kSlowReader,
  kBroken,
  kDrained,
  kMadeRoom,  ///< Idle, and closed for another session.
  kCertificateEnded
};
inline constexpr std::size_t kSessionEndCount = 9;

/// How blocks travel, as a label.
enum class Path : std::uint8_t { kInline, kMemfd, kVerbs };
inline constexpr std::size_t kPathCount = 3;

/// The Store's counters, by name. One list for /stats.json and for /metrics.
struct StoreStatName {
  const char* name;
  std::uint64_t StoreStats::*value;
  bool is_counter;
  const char* help;
};
inline constexpr StoreStatName kStoreStatNames[] = {
    {"capacity_bytes", &StoreStats::capacity_bytes, false, "Bytes of the arena"},
    {"allocated_bytes", &StoreStats::allocated_bytes, false,
     "Bytes of blocks held: stored, incoming, or dropped but still moving"},
    {"slab_bytes", &StoreStats::slab_bytes, false, "Bytes of the arena given to some size class"},
    {"blocks", &StoreStats::block_count, false, "Blocks stored"},
    {"set_blocks", &StoreStats::set_block_count, false, "Of the blocks stored: those that stand alone (sets)"},
    {"set_bytes", &StoreStats::set_bytes, false, "Lengths of those"},
    {"incoming_blocks", &StoreStats::incoming_count, false, "Blocks being put, not visible yet"},
    {"pinned_blocks", &StoreStats::pinned_count, false,
     "Blocks that cannot be evicted now: leased, being moved, or kept by the request retain"},
    {"leases", &StoreStats::lease_count, false, "Live leases"},
    {"leased_bytes", &StoreStats::leased_bytes, false,
     "Bytes of blocks kept by leases, each once: what leased-fraction-max bounds"},
    {"namespaces", &StoreStats::namespace_count, false, "Namespaces with blocks, or idle and remembered"},
    {"forgotten_namespaces", &StoreStats::forgotten_namespaces, true,
     "Idle namespaces forgotten to make room for others"},
    {"index_bytes", &StoreStats::index_bytes, false, "Memory of the index"},
    {"index_used_bytes", &StoreStats::index_used_bytes, false, "Of it in use: what index-bytes-max bounds"},
    {"index_bytes_max", &StoreStats::index_bytes_max, false, "Bound of index_used_bytes"},
    {"match_hit_blocks", &StoreStats::match_hit_blocks, true, "Blocks asked for by match and held"},
    {"match_miss_blocks", &StoreStats::match_miss_blocks, true, "Blocks asked for by match and not held"},
    {"get_hit_blocks", &StoreStats::get_hit_blocks, true, "Blocks asked for by get and held"},
    {"get_miss_blocks", &StoreStats::get_miss_blocks, true, "Blocks asked for by get and not held"},
    {"stored_blocks", &StoreStats::stored_blocks, true, "Blocks stored by put"},
    {"already_stored_blocks", &StoreStats::already_stored_blocks, true, "Blocks offered by put that were here already"},
    {"refused_blocks", &StoreStats::refused_blocks, true, "Blocks refused for lack of evictable memory"},
    {"not_admitted_blocks", &StoreStats::not_admitted_blocks, true,
     "Blocks refused as worth less than what would have had to go for them"},
    {"unlearned_uses", &StoreStats::unlearned_uses, true,
     "Uses of the eviction policy's sample that came too fast to be learned from"},
    {"put_conflict_blocks", &StoreStats::put_conflict_blocks, true,
     "Blocks put twice with different bytes; the first was kept"},
    {"evicted_blocks", &StoreStats::evicted_blocks, true, "Blocks evicted"},
    {"evicted_bytes", &StoreStats::evicted_bytes, true, "Bytes of blocks evicted"},
    {"dropped_blocks", &StoreStats::dropped_blocks, true, "Blocks dropped by request"},
    {"slab_moves", &StoreStats::slab_moves, true, "Slabs taken from one size class for another"},
    {"match_disk_blocks", &StoreStats::match_disk_blocks, true, "Blocks asked for by match and on disk"},
    {"get_disk_blocks", &StoreStats::get_disk_blocks, true, "Blocks asked for by get and on disk"},
    {"disk_blocks", &StoreStats::disk_block_count, false, "Blocks on disk, those in memory too included"},
    {"disk_only_bytes", &StoreStats::disk_only_bytes, false, "Bytes of blocks on disk and nowhere else"},
    {"disk_log_bytes", &StoreStats::disk_log_bytes, false, "Bytes of blocks on disk, dead ones included"},
    {"spilled_blocks", &StoreStats::spilled_blocks, true, "Blocks written to disk"},
    {"disk_evicted_blocks", &StoreStats::disk_evicted_blocks, true, "Blocks evicted from disk"},
    {"rewritten_blocks", &StoreStats::rewritten_blocks, true,
     "Blocks written again since their segment was given back"},
    {"spill_skipped_blocks", &StoreStats::spill_skipped_blocks, true,
     "Blocks evicted unwritten: never used again, or unlikely to be"},
    {"lost_unspilled_blocks", &StoreStats::lost_unspilled_blocks, true,
     "Blocks evicted unwritten: the disk was too slow or off"},
    {"lost_blocks", &StoreStats::lost_blocks, true, "Blocks on disk that could not be read or were damaged"},
    {"leases_granted", &StoreStats::leases_granted, true, "Leases granted"},
    {"leases_expired", &StoreStats::leases_expired, true, "Leases that ended by time"},
    {"leases_refused", &StoreStats::leases_refused, true,
     "Leases refused at a limit, of their number or of what they keep"},
    {"work_steps", &StoreStats::work_steps, true, "Steps of evicting, searching and freeing, of some 10 ns each"},
    {"work_steps_call_max", &StoreStats::work_steps_call_max, false,
     "Steps of the call that took most since the start; bounded, whatever the size of the arena"},
};

/// Counters, gauges and histograms of one node. Each is looked up once, at construction: a look-up takes a lock and
/// hashes labels. Thread safety: all calls from any thread, except watch() and watch_store(): before the first text().
class NodeMetrics {
 public:
  explicit NodeMetrics(const std::string& version);
  ~NodeMetrics();

  /// `took`: from the request's last byte until its answer's last byte is handed over.
  void observe_request(FrameType type, std::chrono::nanoseconds took, bool failed);
  void observe_lock(std::chrono::nanoseconds waited, std::chrono::nanoseconds held);
  void add_bytes_out(Path path, std::uint64_t bytes);
  void add_bytes_in(Path path, std::uint64_t bytes);
  void add_tokens(std::uint64_t hit, std::uint64_t missed);  ///< Of match.
  void session_opened();
  void session_closed(SessionEnd why);
  void session_refused(bool for_its_peer);  ///< True: the peer has its share. False: all sessions are taken.
  void add_region_bytes(std::int64_t bytes);
  void checksum_failed();
  void deadline_missed();
  void request_refused(Errc why);
  void request_was_slow(FrameType type);
  void request_denied(Right right);  ///< A request or page lacks this right; or the tenant's access (kBlocks).

  std::uint64_t session_count() const;
  /// Sums over the labels, for the status page. All are counters, except `sessions`.
  struct Totals {
    std::uint64_t sessions = 0, request_count = 0, bytes_out = 0, bytes_in = 0;
    std::uint64_t checksum_failures = 0, deadline_misses = 0, denials = 0, sessions_refused = 0;
    /// Requests by duration: [i] up to seconds_bounds()[i], the last one longer.
    std::vector<std::uint64_t> match_seconds, get_seconds;
  };
  Totals totals() const;
  static const std::vector<double>& seconds_bounds();

  /// `stats` is called for each text(), on its thread (the admin server's).
  void watch_store(std::function<StoreStats()> stats);
  void watch_curve(std::function<std::optional<LearningDesk::Curve>()> curve);  ///< The same.
  /// The same for values of other parts. `name` is without "kvstore_" and, for a counter, without "_total".
  struct Value {
    Value(const char* of, const auto& number, bool counts, const char* text)
        : name(of), value(static_cast<double>(number)), is_counter(counts), help(text) {}
    const char* name;
    double value;
    bool is_counter;
    const char* help;
  };
  void watch(std::function<std::vector<Value>()> values);
  struct OfTenant {
    std::string name;
    std::vector<Value> values;
  };
  /// The same, for values of tenants; `name` becomes a label. Tenants are bounded; sources share no names.
  void watch_tenants(std::function<std::vector<OfTenant>()> tenants);
  /// Sets the key that wraps the keys of encrypted blocks on disk. Only called with encryption. One thread.
  void set_operator_key(const std::string& id);
  std::string text() const;  ///< Prometheus text format 0.0.4.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
