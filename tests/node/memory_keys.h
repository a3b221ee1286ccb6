// tests/node/memory_keys.h: a KeyStore in memory, with leases on virtual time and the faults of a real one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/node/membership/key_store.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {

/// What several MemoryKeys share.
struct MemoryKeySpace {
  explicit MemoryKeySpace(VirtualClock& c) : clock(c) {}
  struct Value {
    std::string text;
    std::int64_t lease = 0;
  };
  VirtualClock& clock;
  std::map<std::string, Value> values;
  std::map<std::int64_t, std::pair<TimePoint, Duration>> leases;  ///< Until when, and for how long each time.
  std::int64_t last_lease = 0;
  std::uint64_t revision = 1;

  void expire() {
    for (auto lease = leases.begin(); lease != leases.end();) {
      if (lease->second.first > clock.now()) {
        ++lease;
        continue;
      }
      end(lease->first);
      lease = leases.erase(lease);
    }
  }
  void end(std::int64_t lease) {
    revision += std::erase_if(values, [&](const auto& value) { return value.second.lease == lease; }) > 0;
  }
  void set(const std::string& key, std::string text, std::int64_t lease = 0) {
    values[key] = {std::move(text), lease};
    ++revision;
  }
};

class MemoryKeys final : public KeyStore {
 public:
  explicit MemoryKeys(MemoryKeySpace& space) : space_(space) {}

  bool is_away = false;      ///< Each call fails.
  std::string refusal = {};  ///< Not empty: each change fails, with these words, as etcd's out of space do.
  Listing state() const {
    Listing listing{space_.revision, {}};
    for (const auto& [key, value] : space_.values) listing.entries.push_back({key, value.text});
    return listing;
  }
  /// Instead of the state, as a member of etcd has it that was cut off.
  std::optional<Listing> shown;
  std::size_t call_count = 0;

  Reply<Lease> grant(std::chrono::seconds life) override {
    if (fails()) co_return why();
    if (!refusal.empty()) co_return Failure(Errc::kUnavailable, refusal);
    space_.leases[++space_.last_lease] = {space_.clock.now() + life, life};
    co_return space_.last_lease;
  }
  Reply<bool> keep_alive(Lease lease) override {
    if (fails()) co_return why();
    const auto found = space_.leases.find(lease);
    if (found == space_.leases.end()) co_return false;
    found->second.first = space_.clock.now() + found->second.second;
    co_return true;
  }
  Reply<bool> revoke(Lease lease) override {
    if (fails()) co_return why();
    if (space_.leases.erase(lease) == 0) co_return false;
    space_.end(lease);
    co_return true;
  }
  Reply<bool> put(std::string key, std::string value, Lease lease) override {
    if (fails()) co_return why();
    if (!refusal.empty()) co_return Failure(Errc::kUnavailable, refusal);
    if (!space_.leases.contains(lease)) co_return false;
    space_.set(key, std::move(value), lease);
    co_return true;
  }
  Reply<bool> put_new(std::string key, std::string value) override {
    if (fails()) co_return why();
    if (!refusal.empty()) co_return Failure(Errc::kUnavailable, refusal);
    if (space_.values.contains(key)) co_return false;
    space_.set(key, std::move(value));
    co_return true;
  }
  Reply<Listing> list(std::string prefix) override {
    if (fails()) co_return why();
    Listing listing = shown ? *shown : state();
    std::erase_if(listing.entries, [&](const Entry& entry) { return !entry.key.starts_with(prefix); });
    co_return listing;
  }

 private:
  bool fails() {
    ++call_count;
    space_.expire();
    return is_away;
  }
  static Failure why() { return {Errc::kUnavailable, "etcd is away"}; }

  MemoryKeySpace& space_;
};

}  // namespace kv
