// tests/sim/sim_disk_worker.h: the disk tier of a simulated node: no thread, virtual time, and a disk that is slow,
// fails, forgets and flips bits as the seed says.
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "store/node/disk_worker/disk_worker.h"
#include "store/node/locked_store.h"
#include "tests/store/memory_disk.h"

namespace kv::sim {

struct DiskFaults {
  Duration delay_max = 2ms;          ///< Of one operation.
  double failure_probability = 0;    ///< A write or a read fails.
  double stall_probability = 0;      ///< An operation takes three seconds.
  double flip_probability = 0;       ///< A block on disk changes while it is read.
  std::size_t lost_at_kill_max = 0;  ///< Not 0: a kill takes along some of what was done since the last flush.
};

/// Lives from a node's start to its kill; the disk outlives it.
class SimDiskWorker final : public DiskWorker {
 public:
  SimDiskWorker(LockedStore& store, MemoryDisk& disk, Clock& clock, const asio::any_io_executor& executor,
                DiskFaults faults, std::uint64_t seed)
      : store_(store),
        disk_(disk),
        clock_(clock),
        executor_(executor),
        faults_(faults),
        random_(seed),
        writing_(clock.make_alarm(executor)) {
    load();
  }

  /// The process is gone: nothing reaches the disk any more, though sessions may still unwind.
  void die() {
    is_dead_ = true;
    writing_->disarm();
    for (const auto& alarm : drops_) alarm->disarm();
    for (const auto& alarm : reads_) alarm->disarm();
  }

  /// What a daemon does when it is asked to stop: all that is in memory, and not pinned, goes to disk. No fault reaches
  /// in here: what comes of those is the kill's to show.
  void save() {
    if (std::exchange(is_writing_, false)) {
      writing_->disarm();
      finish(carry_out(work_, disk_));
    }
    store_.with([](Store& store) { store.unretain_all(); });
    const auto in_memory = [this] { return store_.with([](Store& store) { return store.stats().allocated_bytes; }); };
    for (std::uint64_t before = in_memory();;) {
      work_ = store_.with([&](Store& store) { return store.spill_work(64 << 10, clock_.now(), /*everything=*/true); });
      const bool has_written = !work_.empty();
      if (has_written) finish(carry_out(work_, disk_));
      const std::uint64_t after = in_memory();
      if (!has_written && after >= before) break;
      before = after;
    }
  }
  void set_faults(DiskFaults faults) { faults_ = faults; }

  bool can_read() const override { return !is_stalled_ && !is_dead_; }
  bool keeps_up() const override { return !is_stalled_ && clock_.now() >= behind_until_; }
  void fell_behind(Duration pause) override { behind_until_ = clock_.now() + pause; }
  std::chrono::microseconds estimate_read(std::uint64_t bytes) const override {
    return std::chrono::microseconds(bytes / 1000);
  }
  std::vector<NodeMetrics::Value> stats() const override { return {}; }

  void keep_drop(const DiskDrop& drop, std::function<void(bool)> done) override {
    if (is_dead_) return done(false);
    drops_.push_back(clock_.make_alarm(executor_));
    const auto at = std::prev(drops_.end());
    (*at)->arm(clock_.now() + next_delay(), [this, at, kept = DiskDrop(drop), done = std::move(done)]() mutable {
      kept.before = std::max(kept.before, DiskKey{std::uint64_t{disk_.epoch()} << 40});
      const bool fails = chance(faults_.failure_probability) || disk_.add_drops(std::span(&kept, 1));
      done(!fails);
      spent_.splice(spent_.end(), drops_, at);
      while (spent_.size() > 1) spent_.pop_front();
    });
  }

  void notify() override {
    if (is_writing_ || is_dead_) return;
    work_ = store_.with([&](Store& store) { return store.spill_work(64 << 10, clock_.now()); });
    if (work_.empty()) {
      if (may_forget_ && !disk_.flush()) {  // all that was to be erased has been
        static_cast<void>(disk_.forget_drops(DiskKey{std::uint64_t{disk_.epoch()} << 40}));
        may_forget_ = false;
      }
      return;
    }
    is_writing_ = true;
    const Duration delay = next_delay();
    is_stalled_ = delay > faults_.delay_max;
    writing_->arm(clock_.now() + delay, [this] { write(); });
  }

  void read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, Waiter, ReadDone done) override {
    if (is_dead_) return done(Errc::kDiskFailed);
    reads_.push_back(clock_.make_alarm(executor_));
    const auto at = std::prev(reads_.end());
    (*at)->arm(clock_.now() + next_delay(), [this, at, key, seed, block_bytes, done = std::move(done)] {
      const bool fails = chance(faults_.failure_probability);
      if (auto* const bytes = disk_.bytes(key); !fails && bytes != nullptr && chance(faults_.flip_probability))
        (*bytes)[random_() % bytes->size()] ^= std::byte{1};
      done(fails ? Result<DiskBlock>(Errc::kDiskFailed) : read_verified(disk_, key, seed, block_bytes));
      spent_.splice(spent_.end(), reads_, at);  // not destroyed within its own ring
      while (spent_.size() > 1) spent_.pop_front();
    });
  }

 private:
  bool chance(double probability) { return std::uniform_real_distribution<double>(0, 1)(random_) < probability; }
  Duration next_delay() {
    if (chance(faults_.stall_probability)) return 3s;
    return Duration(random_() % static_cast<std::uint64_t>(faults_.delay_max.count()) + 1);
  }

  void write() {
    SpillOutcome outcome{.is_written = std::vector<bool>(work_.writes.size(), false), .error = Errc::kDiskFailed};
    if (!chance(faults_.failure_probability)) outcome = carry_out(work_, disk_);
    finish(outcome);
    if (chance(0.1)) static_cast<void>(disk_.flush());  // a memtable was full
    is_writing_ = is_stalled_ = false;
    if (!outcome.error) notify();  // there may be more
  }

  void finish(const SpillOutcome& outcome) {
    store_.with([&](Store& store) { store.finish_spill(work_, outcome); });
  }

  void load() {
    std::vector<DiskRecord> records;
    KV_ASSERT(!disk_.load(
        [&](const NamespaceId&, const std::string& text) {
          store_.with([&](Store& store) { store.load_namespace(NamespaceRecord::parse(text).value()); });
        },
        [&](const DiskRecord& record) { return records.push_back(record), true; }));
    store_.with([&](Store& store) {
      store.begin_load(clock_.now(), disk_.epoch(), disk_.drops());
      for (auto loaded = store.load_records(records); loaded.again;) loaded = store.load_records({});
      store.end_load(/*is_whole=*/true);
    });
    may_forget_ = true;
  }

  LockedStore& store_;
  MemoryDisk& disk_;
  Clock& clock_;
  asio::any_io_executor executor_;
  DiskFaults faults_;
  std::mt19937_64 random_;
  SpillWork work_;
  bool is_writing_ = false, is_stalled_ = false, is_dead_ = false;
  TimePoint behind_until_{};
  std::unique_ptr<Alarm> writing_;
  std::list<std::unique_ptr<Alarm>> reads_, drops_, spent_;
  bool may_forget_ = false;  ///< The drops of earlier starts, once what they named is erased.
};

}  // namespace kv::sim
