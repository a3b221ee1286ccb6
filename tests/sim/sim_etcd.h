// tests/sim/sim_etcd.h: etcd as nodes see it, on virtual time: one state, and ways to it that are slow, cut, or lose
// the answer to what was done. The real one is in tests/e2e/cluster_test.cc.
#pragma once

#include <deque>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/node/memory_keys.h"

namespace kv::sim {

/// What all nodes' ways to it share.
class SimEtcd {
 public:
  SimEtcd(VirtualClock& clock, asio::any_io_executor executor, std::uint64_t seed)
      : space_(clock), clock_(clock), executor_(std::move(executor)), random_(seed) {}

  void set_lost_answers(double probability) { lost_answers_ = probability; }
  /// Nobody is answered from now on.
  void go_away() { is_away_ = true; }
  /// It is back. With `keeps_leases` each has its whole time again, as after an election; else those whose time is over
  /// have ended.
  void come_back(bool keeps_leases) {
    if (is_away_ && keeps_leases) {
      for (auto& [id, lease] : space_.leases) lease.first = clock_.now() + lease.second;
    }
    is_away_ = false;
  }
  bool is_away() const { return is_away_; }
  /// All of it is gone; revisions begin anew, as in an etcd that was set up again.
  void lose_data() {
    space_.values.clear();
    space_.leases.clear();
    space_.revision = 1;
    past_.clear();
  }
  /// Somebody who may write to it does; nobody's lease keeps that.
  void write(const std::string& key, std::string value) { space_.set(key, std::move(value)); }
  void erase(const std::string& key) { space_.revision += space_.values.erase(key); }
  /// A node's way to it.
  void cut(const std::string& node) { cut_.insert(node); }
  /// The node talks to a member of etcd that lost the others: reads are answered with what that knows, writes not.
  void leave_behind(const std::string& node) {
    if (past_.empty()) return;
    const auto at = std::uniform_int_distribution<std::size_t>(0, past_.size() - 1)(random_);
    behind_[node] = past_[at];
  }
  void mend_all() {
    cut_.clear();
    behind_.clear();
    lost_answers_ = 0;
  }
  bool is_reached_by(const std::string& node) const {
    return !is_away_ && !cut_.contains(node) && !behind_.contains(node);
  }

 private:
  friend class SimKeys;

  KeyStore::Listing state() {
    space_.expire();
    KeyStore::Listing listing{space_.revision, {}};
    for (const auto& [key, value] : space_.values) listing.entries.push_back({key, value.text});
    if (past_.empty() || past_.back().revision != listing.revision) past_.push_back(listing);
    if (past_.size() > 20) past_.pop_front();
    return listing;
  }

  MemoryKeySpace space_;
  VirtualClock& clock_;
  asio::any_io_executor executor_;
  std::mt19937_64 random_;
  bool is_away_ = false;
  double lost_answers_ = 0;
  std::set<std::string> cut_;
  std::map<std::string, KeyStore::Listing> behind_;
  std::deque<KeyStore::Listing> past_;
};

/// Of one life of one node.
class SimKeys final : public KeyStore {
 public:
  SimKeys(SimEtcd& etcd, std::string node) : etcd_(etcd), keys_(etcd.space_), node_(std::move(node)) {}

  void die() { is_dead_ = true; }  ///< With its process: nothing that it asks arrives any more.

  Reply<Lease> grant(std::chrono::seconds life) override {
    auto answer = co_await ask([life](KeyStore& keys) { return keys.grant(life); });
    co_return answer;
  }
  Reply<bool> keep_alive(Lease lease) override {
    auto answer = co_await ask([lease](KeyStore& keys) { return keys.keep_alive(lease); });
    co_return answer;
  }
  Reply<bool> revoke(Lease lease) override {
    auto answer = co_await ask([lease](KeyStore& keys) { return keys.revoke(lease); });
    co_return answer;
  }
  Reply<bool> put(std::string key, std::string value, Lease lease) override {
    auto answer = co_await ask([&](KeyStore& keys) { return keys.put(key, value, lease); });
    co_return answer;
  }
  Reply<bool> put_new(std::string key, std::string value) override {
    auto answer = co_await ask([&](KeyStore& keys) { return keys.put_new(key, value); });
    co_return answer;
  }
  Reply<Listing> list(std::string prefix) override {
    co_await travel();
    if (const auto old = etcd_.behind_.find(node_); old != etcd_.behind_.end() && !is_dead_ && !etcd_.is_away_) {
      Listing listing = old->second;
      std::erase_if(listing.entries, [&](const Entry& entry) { return !entry.key.starts_with(prefix); });
      co_return listing;
    }
    if (!is_reached()) {
      co_await sleep(kTimeout);
      co_return why();
    }
    Listing listing = etcd_.state();
    std::erase_if(listing.entries, [&](const Entry& entry) { return !entry.key.starts_with(prefix); });
    co_await travel();
    co_return listing;
  }

 private:
  static constexpr Duration kTimeout = 2s;

  bool is_reached() const { return !is_dead_ && etcd_.is_reached_by(node_); }
  static Failure why() { return {Errc::kUnavailable, "etcd is away"}; }

  /// The operation itself takes no time; the way there and back does. A template, so that its lambda needs no copy: the
  /// caller, a coroutine, waits for it with what it captured.
  template <class Operation>
  auto ask(Operation operation) -> decltype(operation(std::declval<KeyStore&>())) {
    co_await travel();
    if (!is_reached()) {
      co_await sleep(kTimeout);
      co_return why();
    }
    auto answer = co_await operation(keys_);
    etcd_.state();  // remembered for those who are left behind
    if (std::uniform_real_distribution<double>(0, 1)(etcd_.random_) < etcd_.lost_answers_) {
      co_await sleep(kTimeout);
      co_return why();
    }
    co_await travel();
    co_return answer;
  }
  asio::awaitable<void> travel() {
    return sleep(std::chrono::microseconds(std::uniform_int_distribution<std::int64_t>(200, 5000)(etcd_.random_)));
  }
  asio::awaitable<void> sleep(Duration duration) {
    Event over(etcd_.executor_);
    const auto alarm = etcd_.clock_.make_alarm(etcd_.executor_);
    alarm->arm(etcd_.clock_.now() + duration, [&over] { over.set(); });
    co_await over.wait();
  }

  SimEtcd& etcd_;
  MemoryKeys keys_;
  const std::string node_;
  bool is_dead_ = false;
};

}  // namespace kv::sim
