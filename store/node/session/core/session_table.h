// store/node/session/core/session_table.h: a node's sessions by peer, and which one makes room for a new one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace kv {

struct SessionTableConfig {
  std::size_t count_max = 4096;
  /// Share of count_max that one peer may hold while alone; 1: all.
  double peer_share_max = 0.75;
  Duration idle_min = 60s;  ///< A session idle for so long may make room.
  Duration hello_min = 1s;  ///< The same for a connection before hello.
};

/// A peer is a Unix user or a TCP address, which a hostile process cannot choose for itself. All local workers of one
/// user are one peer, so its share is large, but never everything:
///   1. size() <= count_max, except for sessions that are ending, and after count_max was lowered.
///   2. A peer gets another session only while it holds fewer than s / (1 - s) times as many as are free, with s =
///      peer_share_max, and always a first one. So alone it gets the share s, and each peer that takes all it gets
///      leaves 1 - s of the free ones: 4 of 4096 behind five such peers.
///   3. Where 1 or 2 refuses, the longest idle session of that peer (1: of any peer) is ended for the new one, if idle
///      for idle_min. An idle session lends no memory, holds no lease and moves no blocks: its worker can reconnect.
/// Thread safety: all calls from any thread. Cost: admit() O(1), at a limit O(sessions).
class SessionTable {
 public:
  explicit SessionTable(const SessionTableConfig& config) : config_(config) {}

  /// A session's state as the table sees it, set on the session's thread. Made by admit().
  class Seat {
   public:
    static constexpr Duration::rep kBusy = INT64_MAX;
    void set_busy() { idle_since_ = kBusy; }
    void set_idle(TimePoint since) { idle_since_ = since.time_since_epoch().count(); }
    void set_greeted() { is_greeted_ = true; }
    Duration::rep idle_since() const { return idle_since_; }  ///< Since the clock's epoch; or kBusy.
    bool is_greeted() const { return is_greeted_; }

   private:
    std::atomic<Duration::rep> idle_since_{kBusy};
    std::atomic<bool> is_greeted_{false};
  };

  enum class Refusal : std::uint8_t { kFull, kPeer };
  /// A seat, or the refusal. `end` is called when the session is chosen to make room, perhaps within another admit().
  Result<std::shared_ptr<Seat>, Refusal> admit(const std::string& peer, TimePoint now);
  void set_end(const std::shared_ptr<Seat>& seat, std::function<void()> end);
  void stay(const std::shared_ptr<Seat>& seat);  ///< The chosen session is busy again.
  void leave(const std::shared_ptr<Seat>& seat);
  /// With fewer seats all sessions stay for now: the next newcomer makes room, as far as sessions are idle.
  void set_limits(const SessionTableConfig& config);

  std::size_t size() const {  ///< Without those that are ending.
    const std::lock_guard lock(mutex_);
    return size_;
  }
  std::size_t peer_size(const std::string& peer) const;

 private:
  /// The dynamic type of every seat, with the table's own part, under mutex_.
  struct Place final : Seat {
    std::string peer;
    std::function<void()> end;  ///< Asks the session to end, if it is still idle. Any thread.
    bool is_leaving = false;
    std::list<std::shared_ptr<Place>>::iterator at;
  };

  static Place& place_of(const std::shared_ptr<Seat>& seat) { return static_cast<Place&>(*seat); }
  std::size_t allowed(std::size_t free) const;
  bool end_one_idle(const std::string* peer, TimePoint now);
  void take_off(const Place& place);

  mutable std::mutex mutex_;
  SessionTableConfig config_;
  std::list<std::shared_ptr<Place>> places_;
  std::map<std::string, std::size_t> peers_;  ///< Sessions of each.
  std::size_t size_ = 0;
};

}  // namespace kv
