#include "store/node/disk_worker/disk_threads.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/assert.h"
#include "base/back_off.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr Duration kPollInterval = 20ms;  ///< Between looks at the Store without a notification, and while stopping.
constexpr int kNiceness = 10;             ///< Of background threads.
constexpr std::chrono::milliseconds kScrubWait{5};
constexpr Duration kStatsInterval = 100ms;
constexpr Duration kDrainSaid = 10s;        ///< Between progress lines in the log.
constexpr Duration kEndDrainPause = 200ms;  ///< Between attempts to close an empty directory.
constexpr Duration kErasuresWait = 1s;      ///< The longest that erasures stay unwritten.
/// Attempts to load. Bounded, because the log's old end cannot be given back during a load.
constexpr int kLoadTries = 5;
constexpr std::size_t kRecordsPerLock = 128;  ///< During a load: some ten microseconds under the lock.

/// Lowers this thread's priority, since serving goes first. (On Linux a niceness belongs to a thread.)
void yield_to_others() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness); }

/// After an exception all of the work counts as unwritten: its blocks are released as after any disk failure.
SpillOutcome carry_out_within_border(const SpillWork& work, Disk& disk) {
  SpillOutcome outcome{.is_written = std::vector<bool>(work.writes.size(), false), .error = Errc::kDiskFailed};
  within_border(NodeThread::kDisk, [&] { outcome = carry_out(work, disk); });
  return outcome;
}

/// Errors that persist until the operator changes something.
bool is_refusal(error_code error) {
  if (error == Errc::kUnsupported || error == Errc::kMismatch || error == Errc::kBusy) return true;
  return error.category() == boost::system::generic_category() &&
         std::ranges::any_of(std::initializer_list<int>{EACCES, EPERM, ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG},
                             [&](int number) { return error.value() == number; });
}

}  // namespace

DiskThreads::DiskThreads(LockedStore& store, OpenDisk open, Clock& clock, const DiskThreadsConfig& config)
    : store_(store),
      open_(std::move(open)),
      clock_(clock),
      config_(config),
      write_bytes_per_second_(config.write_bytes_per_second),
      drain_bytes_per_second_(config.drain_bytes_per_second),
      give_up_after_(config.give_up_after.count()),
      stuck_after_(config.stuck_after.count()),
      scrubber_(store, clock, config.scrub_bytes_per_second),
      reader_(clock, config.read_threads, config.read_queue_bytes_max),
      writing_(clock),
      scrubbing_(clock),
      dropping_(clock) {
  KV_ASSERT(open_ != nullptr);
  KV_ASSERT(config_.read_threads > 0 && config_.batch_bytes > 0 && config_.retry_after > Duration::zero());
}

void DiskThreads::set_limits(const DiskThreadsConfig& config) {
  write_bytes_per_second_ = config.write_bytes_per_second;
  drain_bytes_per_second_ = config.drain_bytes_per_second;
  give_up_after_ = config.give_up_after.count();
  stuck_after_ = config.stuck_after.count();
  scrubber_.set_rate(config.scrub_bytes_per_second);
}

DiskThreads::~DiskThreads() {
  stop(false);
  if (writer_.joinable()) writer_.join();  // the writer has joined the other two
}

/// The opener has a thread of its own, since opening may repair for minutes while the node serves from memory. start()
/// waits only for a refused directory, which is a configuration mistake and must stop the start.
std::string DiskThreads::start(Duration patience) {
  KV_ASSERT(!writer_.joinable());
  loading_ = true;
  auto refused = accepted_.get_future();
  opener_ = std::thread([this] {
    const auto guarded = [](auto step) { within_border(NodeThread::kDisk, step); };
    guarded([this] { open_disk(); });
    guarded([this] {
      if (open_disk_ != nullptr) load();
    });
    loading_ = false;
    guarded([this] {
      if (open_disk_ != nullptr) scrub();
    });
  });
  // After an exception each loop resumes: unwritten blocks and unkept drops are work again.
  dropper_ = std::thread([this] {
    while (!within_border(NodeThread::kDisk, [this] { keep_drops(); })) std::this_thread::sleep_for(kPollInterval);
  });
  writer_ = std::thread([this] {
    yield_to_others();
    while (!within_border(NodeThread::kDisk, [this] { write_loop(); })) std::this_thread::sleep_for(kPollInterval);
    // The others end first: a load would bring back blocks being saved, and a drop from before the stop is to be kept.
    opener_.join();
    dropper_.join();
    within_border(NodeThread::kDisk, [this] {
      if (saves_ && is_on_) save();
      if (open_disk_ != nullptr) flush();
    });
    written_.set_value();
  });
  return refused.wait_for(patience) == std::future_status::ready ? refused.get() : "";
}

bool DiskThreads::stop(bool save) {
  if (stopping_.exchange(true) || !writer_.joinable()) return true;
  saves_ = save;
  reader_.refuse();
  notify();
  {
    const std::lock_guard lock(drop_mutex_);
    drop_wake_.notify_all();
  }
  auto written = written_.get_future();
  std::uint64_t finished = 0;
  TimePoint last_sign = clock_.now();
  const auto is_done = [&] {
    if (written.wait_for(kPollInterval) != std::future_status::ready || !reader_.watch().is_idle()) return false;
    // One of several directories may hang without a caller waiting for it.
    return open_disk_ == nullptr || open_disk_.load()->hanging(Duration::zero()).empty();
  };
  while (!is_done()) {
    // A slow disk may take minutes to save. It is given up only when it completes no call at all.
    if (const std::uint64_t now_finished = finished_calls(); now_finished != finished) {
      finished = now_finished;
      last_sign = clock_.now();
    }
    if (clock_.now() - last_sign > Duration(give_up_after_.load())) return false;
  }
  return true;
}

/// Grows as long as the disk answers.
std::uint64_t DiskThreads::finished_calls() const {
  return writing_.finished_count() + scrubbing_.finished_count() + dropping_.finished_count() +
         reader_.watch().finished_count() + loaded_blocks_;
}

bool DiskThreads::flush() {
  KV_ASSERT(disk_ != nullptr);
  writing_.begin();
  const error_code error = disk_->flush();
  writing_.end();
  flush_due_ = error ? clock_.now() + kErasuresWait : TimePoint::max();
  if (error) failed("flush", error);
  return !error;
}

/// Writes all blocks in memory. Sessions are over, so the loop ends when memory is empty or the disk takes no block.
void DiskThreads::save() {
  const auto in_memory = [this] { return store_.with([](Store& store) { return store.stats().allocated_bytes; }); };
  spdlog::info("disk: writing what is in memory, {} MiB", in_memory() >> 20);
  store_.with([](Store& store) { store.unretain_all(); });  // pinned blocks would not be written, and be lost
  TimePoint reported = clock_.now();
  for (std::uint64_t before = in_memory(); is_on_;) {
    const bool has_written = work_once(/*everything=*/true) > 0;
    const std::uint64_t after = in_memory();
    // A call may make progress without writing: it releases blocks that are already on disk.
    if (!has_written && after >= before) break;
    before = after;
    if (clock_.now() - reported < 5s) continue;
    reported = clock_.now();
    spdlog::info("disk: {} MiB to go", after >> 20);
  }
}

/// Called for every put. Once the writer is notified, further calls only check a flag, under a nearly always free lock.
void DiskThreads::notify() {
  {
    const std::lock_guard lock(mutex_);
    if (is_notified_) return;
    is_notified_ = true;
  }
  wake_.notify_one();
}

// -- writing

void DiskThreads::write_loop() {
  TimePoint allowed_from = clock_.now();  // later than now: the write budget is spent, or the disk failed
  while (!stopping_) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kPollInterval, [this] { return is_notified_ || stopping_; });
      is_notified_ = false;
    }
    if (is_on_ && clock_.now() >= flush_due_) flush();
    while (!stopping_ && open_disk_ != nullptr && clock_.now() >= allowed_from) {
      std::uint64_t worked = work_once(/*everything=*/false);
      keep_stats();
      if (is_on_)
        worked += drain_once();
      else if (drain_)
        drain_->failing_since.reset();  // the directory is not asked meanwhile
      if (worked == 0) {
        // The next call after the pause is a trial; at once if a directory was left out just now: others may work.
        if (!is_on_ && disk_->places() == places_) allowed_from = clock_.now() + config_.retry_after;
        break;
      }
      if (clock_.now() >= flush_due_) flush();
      if (const std::uint64_t rate = write_bytes_per_second_; rate > 0) {
        const std::chrono::duration<double> pause(static_cast<double>(worked) / static_cast<double>(rate));
        allowed_from = clock_.now() + std::chrono::duration_cast<Duration>(pause);
      }
    }
  }
}

/// Threads that ask for stats must not hang with the disk, so they get a recent copy.
void DiskThreads::keep_stats() {
  if (clock_.now() < stats_due_) return;
  stats_due_ = clock_.now() + kStatsInterval;
  const DiskStats stats = disk_->stats();
  const std::lock_guard lock(mutex_);
  stats_ = stats;
}

DiskStats DiskThreads::last_stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

/// Returns the bytes written, at least 1 if any work was done; 0 when idle or when the disk fails.
std::uint64_t DiskThreads::work_once(bool everything) {
  tell_places(disk_->places(), disk_->leaving());
  const SpillWork work =
      store_.with([&](Store& store) { return store.spill_work(config_.batch_bytes, clock_.now(), everything); });
  if (work.empty()) {
    // Without anything to write, a flush is the trial of a failed disk.
    if (!is_on_ && flush()) recovered();
    if (is_on_ && forgettable_ != 0) forget_drops();
    return 0;
  }
  // Outside the lock. The blocks of `work` are pinned, so their slots stay theirs.
  KV_ASSERT(disk_ != nullptr);
  writing_.begin();
  const SpillOutcome outcome = carry_out_within_border(work, *disk_);
  writing_.end();
  store_.with([&](Store& store) { store.finish_spill(work, outcome); });
  if (outcome.lost_count > 0)
    spdlog::warn("disk: {} blocks were damaged or gone when their segment was given back", outcome.lost_count);
  // After finish_spill() the unwritten blocks are still in memory, and are work again after the pause.
  if (outcome.error) {
    failed("write", outcome.error);
    return 0;
  }
  if (work.drop_before != DiskKey{})
    forgettable_ = std::max<std::uint64_t>(forgettable_, static_cast<std::uint64_t>(work.drop_before));
  if ((!work.erased.empty() || !work.gone_spaces.empty()) && flush_due_ == TimePoint::max())
    flush_due_ = clock_.now() + kErasuresWait;
  if (!is_on_) recovered();
  return std::max<std::uint64_t>(work.write_bytes, 1);
}

// -- directories that come and go

std::string DiskThreads::set_directories(const std::vector<std::string>& paths) {
  if (paths.empty())
    return "the last directory cannot be drained: to run without a disk tier, change the configuration and restart";
  Disk* const disk = open_disk_;
  if (disk == nullptr) return "the disk is not open yet, or cannot be opened; try again later";
  if (loading_) return "the index is still being rebuilt after the start (kvstore_disk_is_loading); try again later";
  if (is_stuck()) return "the disk does not answer; try again once it does";
  const auto changed = disk->set_directories(paths);
  notify();
  return changed ? "" : changed.error().text;
}

void DiskThreads::tell_places(std::vector<DiskPlace> places, std::span<const LeavingDirectory> leaving) {
  std::vector<DiskPlace> leave;
  for (const LeavingDirectory& each : leaving) leave.push_back(each.place);
  if (places == places_ && leave == leaving_) return;
  places_ = places;
  leaving_ = leave;
  store_.with([&](Store& store) { store.set_disk_places(std::move(places), leave); });
}

/// Counts the blocks in leaving directories and picks the first directory for draining. False: no directory is leaving.
bool DiskThreads::look_at_leaving() {
  const std::vector<LeavingDirectory> leaving = disk_->leaving();
  const auto is_leaving = [&](DiskPlace place) {
    return std::ranges::find(leaving, place, &LeavingDirectory::place) != leaving.end();
  };
  if (drain_ && !is_leaving(drain_->from.place)) {
    spdlog::info("disk: {} is not emptied any further: {} blocks stay there", drain_->from.name,
                 use_of(drain_->from.place).block_count);
    drain_.reset();
  }
  DiskTier::PlaceUse left;
  for (const LeavingDirectory& each : leaving) {
    const DiskTier::PlaceUse own = use_of(each.place);
    left.block_count += own.block_count;
    left.bytes += own.bytes;
    if (drain_ && each.place == drain_->from.place) drain_->from = each;
  }
  const std::lock_guard lock(mutex_);
  drain_stats_.directory_count = leaving.size();
  drain_stats_.left = left;
  if (leaving.empty()) return false;
  if (!drain_) drain_ = Drain{.from = leaving.front(), .before = drain_stats_, .said = clock_.now()};
  return true;
}

DiskTier::PlaceUse DiskThreads::use_of(DiskPlace place) {
  return store_.with([&](Store& store) { return store.disk_place_use(place); });
}

/// Moves a batch out of a leaving directory. Returns the bytes written, at least 1 if more work is due at once.
std::uint64_t DiskThreads::drain_once() {
  if (!look_at_leaving()) return 0;
  const DiskPlace place = drain_->from.place;
  const std::string& name = drain_->from.name;
  if (std::ranges::find(leaving_, place) == leaving_.end()) return 1;  // not yet reported to the Store
  const TimePoint now = clock_.now();
  if (now < drain_due_) return 0;
  const DiskTier::PlaceUse use = use_of(place);
  if (use.block_count == 0) return end_drain() ? 1 : 0;
  if (now - drain_->said >= kDrainSaid) {
    drain_->said = now;
    spdlog::info("disk: {}: {} blocks, {} MiB still to be moved", name, use.block_count, use.bytes >> 20);
  }
  if (!drain_->from.answers) return drain_fails(use, "does not answer");
  const std::uint64_t rate = drain_bytes_per_second_;
  const std::uint64_t bytes_max =
      rate == 0 ? config_.batch_bytes : std::clamp<std::uint64_t>(rate / 8, 1, config_.batch_bytes);
  // When the other directories lack room, evict the least valuable blocks of any directory so that the rest fits.
  const std::uint64_t room = last_stats().free_bytes;
  const std::uint64_t needed = use.bytes + 8 * config_.batch_bytes;
  std::size_t evicted = 0;
  if (needed > room) {
    evicted = store_.with(
        [&](Store& store) { return store.evict_from_disk(std::min(needed - room, config_.batch_bytes), now); });
  }
  const SpillWork work = store_.with([&](Store& store) { return store.drain_work(place, bytes_max, now); });
  if (work.empty()) {  // the log entries looked at held no block of this place
    count_drained({}, {}, evicted, 0);
    return 1;
  }
  writing_.begin();
  const SpillOutcome outcome = carry_out_within_border(work, *disk_);
  writing_.end();
  const std::size_t lost = store_.with([&](Store& store) { return store.finish_spill(work, outcome); });
  const DiskTier::PlaceUse moved = count_drained(work, outcome, evicted, lost);
  const bool is_refused =
      outcome.error && moved.block_count == 0 && outcome.unreadable.size() + outcome.lost_count < work.writes.size();
  if (moved.block_count == 0 && !outcome.unreadable.empty() && !is_refused)
    return drain_fails(use, outcome.error.message());
  drain_->failing_since.reset();
  if (is_refused) {  // by the directories that stay
    failed("write", outcome.error);
    return 0;
  }
  if (rate > 0) {
    const std::chrono::duration<double> pause(static_cast<double>(moved.bytes) / static_cast<double>(rate));
    drain_due_ = now + std::chrono::duration_cast<Duration>(pause);
  }
  return std::max<std::uint64_t>(moved.bytes, 1);
}

DiskTier::PlaceUse DiskThreads::count_drained(const SpillWork& work, const SpillOutcome& outcome, std::size_t evicted,
                                              std::size_t lost) {
  DiskTier::PlaceUse moved;
  for (std::size_t i = 0; i < work.writes.size(); ++i) {
    moved.block_count += outcome.is_written[i];
    moved.bytes += outcome.is_written[i] ? work.writes[i].record.block_bytes : 0;
  }
  const std::lock_guard lock(mutex_);
  drain_stats_.moved.block_count += moved.block_count;
  drain_stats_.moved.bytes += moved.bytes;
  drain_stats_.evicted_blocks += evicted;
  drain_stats_.lost_blocks += lost;
  return moved;
}

/// Blocks that the directory does not yield in time are lost: removing a broken device must not take for ever.
std::uint64_t DiskThreads::drain_fails(const DiskTier::PlaceUse& use, const std::string& why) {
  const TimePoint now = clock_.now();
  drain_due_ = now + std::min(config_.retry_after, config_.drain_give_up_after / 4);
  if (!drain_->failing_since) {
    drain_->failing_since = now;
    spdlog::warn("disk: {} is to be emptied and {}: its {} blocks are lost unless it gives some within {} s",
                 drain_->from.name, why, use.block_count,
                 std::chrono::duration_cast<std::chrono::seconds>(config_.drain_give_up_after).count());
  }
  if (now - *drain_->failing_since < config_.drain_give_up_after) return 0;
  std::size_t lost = 0;
  for (bool again = true; again && !stopping_;) {
    again = store_.with([&](Store& store) {
      lost += store.give_up_disk_place(drain_->from.place, now);
      return store.disk_place_use(drain_->from.place).block_count > 0;
    });
  }
  count_drained({}, {}, 0, lost);
  drain_due_ = now;
  return 1;
}

/// Closes the empty directory. False: not yet, try again later.
bool DiskThreads::end_drain() {
  drain_due_ = clock_.now() + kEndDrainPause;
  if (!flush()) return false;  // moved blocks are safe from a kill from here on
  if (const error_code error = disk_->remove(drain_->from.place); error) {
    if (error != Errc::kNotFound && error != Errc::kBusy)
      spdlog::warn("disk: {} cannot be closed yet: {}", drain_->from.name, error.message());
    return false;
  }
  store_.with([&](Store& store) { store.forget_disk_place(drain_->from.place); });
  DrainStats after;
  {
    const std::lock_guard lock(mutex_);
    after = drain_stats_;
  }
  const DrainStats& before = drain_->before;
  spdlog::info("disk: {} is empty: {} blocks were moved, {} dropped for lack of room elsewhere, {} lost",
               drain_->from.name, after.moved.block_count - before.moved.block_count,
               after.evicted_blocks - before.evicted_blocks, after.lost_blocks - before.lost_blocks);
  drain_.reset();
  return true;
}

// -- drops

void DiskThreads::keep_drop(const DiskDrop& drop, std::function<void(bool)> done) {
  {
    const std::lock_guard lock(drop_mutex_);
    if (takes_drops_ && !stopping_ && drops_.size() < config_.drop_queue_max) {
      drops_.push_back({drop, std::move(done)});
      drop_wake_.notify_one();
      return;
    }
  }
  ++drops_not_kept_;
  done(false);
}

/// Runs on the caller's thread; writes go on meanwhile.
Result<DiskPurge> DiskThreads::purge(std::span<const DiskDrop> dropped,
                                     const std::function<bool(const DiskPurge&)>& goes_on) {
  Disk* const disk = open_disk_;
  if (disk == nullptr || loading_) return make_error_code(Errc::kBusy);
  return disk->purge(dropped, [&](const DiskPurge& so_far) { return !stopping_ && goes_on(so_far); });
}

Result<std::vector<std::string>> DiskThreads::namespaces_on_disk() const {
  const Disk* const disk = open_disk_;
  if (disk == nullptr || loading_) return make_error_code(Errc::kBusy);
  std::vector<std::string> records;
  const error_code error = disk->load([&](const NamespaceId&, const std::string& record) { records.push_back(record); },
                                      [](const DiskRecord&) { return false; });
  if (error) return error;
  return records;
}

/// Has its own thread: clients wait for each drop, and the writer may be busy with 8 MiB. Drops that arrive during a
/// sync share the next one.
void DiskThreads::keep_drops() {
  std::unique_lock lock(drop_mutex_);
  while (!stopping_) {
    drop_wake_.wait_for(lock, kPollInterval, [this] { return !drops_.empty() || stopping_; });
    Disk* const disk = open_disk_;
    if (drops_.empty() || disk == nullptr) {
      // The disk is not open yet: try again a little later. Waiting for a drop would return at once.
      if (!drops_.empty() && !stopping_) drop_wake_.wait_for(lock, kPollInterval);
      continue;
    }
    const std::vector<WaitingDrop> batch = std::exchange(drops_, {});
    lock.unlock();
    std::vector<DiskDrop> drops;
    for (const WaitingDrop& each : batch) {
      drops.push_back(each.drop);
      // A drop from before the disk was open has no key yet. It covers everything that earlier starts wrote.
      const DiskKey first{std::uint64_t{disk->epoch()} << 40};
      drops.back().before = std::max(drops.back().before, first);
    }
    KV_ASSERT(!drops.empty() && drops.size() <= config_.drop_queue_max);
    dropping_.begin();
    error_code error = Errc::kDiskFailed;
    within_border(NodeThread::kDisk, [&] { error = disk->add_drops(drops); });
    dropping_.end();
    if (error)
      spdlog::warn("disk: {} drops are not kept and hold until the next start: {}", drops.size(), error.message());
    (error ? drops_not_kept_ : drops_kept_) += drops.size();
    for (const WaitingDrop& each : batch) each.done(!error);
    lock.lock();
  }
  // Drops are refused from here on. Requests wait for the queued ones, so answer those at once.
  takes_drops_ = false;
  const std::vector<WaitingDrop> rest = std::exchange(drops_, {});
  lock.unlock();
  drops_not_kept_ += rest.size();
  for (const WaitingDrop& each : rest) each.done(false);
}

/// Called by the writer once no erasures are left.
void DiskThreads::forget_drops() {
  // Exchanged, not read: drops that become forgettable meanwhile are for the next call.
  const DiskKey before{forgettable_.exchange(0)};
  if (std::ranges::none_of(disk_->drops(), [before](const DiskDrop& drop) { return drop.before <= before; })) return;
  if (!flush()) return forgettable_ = static_cast<std::uint64_t>(before), void();
  writing_.begin();
  const error_code error = disk_->forget_drops(before);
  writing_.end();
  if (error == Errc::kBusy) return;  // a directory has erasures left: the next start forgets the drops
  if (error) failed("forget drops", error);
}

/// An outage is logged once, however many of its calls fail. Any thread of the driver may be first: exchange() decides.
void DiskThreads::failed(const char* what, error_code error) {
  if (!is_on_.exchange(false)) return;
  ++outages_;
  spdlog::error(
      "disk: off: the disk failed ({}: {}); blocks are evicted unwritten, and the disk is tried again every {} s", what,
      error.message(), std::chrono::duration_cast<std::chrono::seconds>(config_.retry_after).count());
}

void DiskThreads::recovered() {
  is_on_ = true;
  spdlog::info("disk: the disk works again");
}

/// A hanging disk fails no call, so is_on_ stays set: only the duration of the current call shows the hang.
bool DiskThreads::is_stuck() const {
  const bool is_stuck =
      std::ranges::any_of(std::initializer_list<const CallWatch*>{&writing_, &scrubbing_, &dropping_, &reader_.watch()},
                          [this](const CallWatch* watch) { return watch->is_stuck(Duration(stuck_after_.load())); });
  // Any thread may notice first. exchange() lets only one write the log line.
  if (is_stuck_said_ != is_stuck && is_stuck_said_.exchange(is_stuck) != is_stuck) {
    const Disk* const disk = open_disk_;
    const std::string which = disk != nullptr ? disk->hanging(Duration(stuck_after_.load())) : "";
    if (is_stuck)
      spdlog::error("disk: off: {} does not answer; blocks are evicted unwritten until it does",
                    which.empty() ? "the disk" : which);
    else
      spdlog::info("disk: the disk answers again");
  }
  return is_stuck;
}

void DiskThreads::read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, Waiter waiter, ReadDone done) {
  KV_ASSERT(block_bytes > 0);
  const Disk* const disk = open_disk_;
  if (disk == nullptr) return done(Errc::kBusy);
  reader_.read(*disk, key, seed, block_bytes, std::move(waiter), std::move(done));
}

// -- after a start

/// Tries until a disk is open, or the driver is stopped.
void DiskThreads::open_disk() {
  bool is_accepted = false;
  const auto accept = [&](const std::string& refusal) {
    if (!std::exchange(is_accepted, true)) accepted_.set_value(refusal);
  };
  bool is_said = false;
  while (!stopping_) {
    auto opened = open_([&] { accept(""); });
    if (opened) {
      disk_ = std::move(*opened);
      KV_ASSERT(disk_ != nullptr && open_disk_ == nullptr);
      const std::vector<DiskDrop> drops = disk_->drops();
      store_.with([&](Store& store) { store.begin_load(clock_.now(), disk_->epoch(), drops); });
      is_on_ = true;
      // Last: from here on other threads use the disk, and the Store must have its epoch by then.
      open_disk_ = disk_.get();
      break;
    }
    const Failure failure = opened.error();
    if (!std::exchange(is_said, true)) {
      spdlog::error("disk: off: {}; the disk is tried again every {} s", failure.text,
                    std::chrono::duration_cast<std::chrono::seconds>(config_.retry_after).count());
    }
    accept(is_refusal(failure.code) ? failure.text : "");
    wait(config_.retry_after);
  }
  accept("");
}

/// Rebuilds the index from the records, newest first. Until end_load() the Store keeps every old block on disk alive,
/// indexed or not. After a failed load, blocks that were not loaded stay unindexed until the next start.
void DiskThreads::load() {
  const TimePoint began = clock_.now();
  KV_ASSERT(disk_ != nullptr && open_disk_ != nullptr);
  error_code error = load_once();
  BackOff pauses({.min = config_.retry_after, .max = config_.retry_after * (1 << kLoadTries)});
  for (int tries = 1; error && !stopping_ && tries < kLoadTries; ++tries) {
    failed("load", error);
    pauses.failed(clock_.now());
    wait(pauses.pause());
    if (!stopping_) error = load_once();
  }
  const std::uint64_t count = store_.with([&](Store& store) { return store.end_load(!error && !stopping_); });
  if (error) failed("load", error);
  // A complete load has erased all blocks dropped before this start, so those drops are obsolete.
  if (!error && !stopping_) forgettable_ = std::max<std::uint64_t>(forgettable_, std::uint64_t{disk_->epoch()} << 40);
  spdlog::info("disk: {} blocks of earlier starts are there again after {} ms{}", count,
               std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - began).count(),
               error ? "; the others are not found before the next start" : "");
  notify();
}

/// Starts at the newest record. The Store skips records that it has seen, so an interrupted load is simply repeated.
error_code DiskThreads::load_once() {
  TimePoint reported = clock_.now();
  std::vector<DiskRecord> batch;
  bool has_room = true;
  const auto flush = [&] {
    for (bool again = true; again && !stopping_;) {
      const auto loaded = store_.with([&](Store& store) { return store.load_records(batch); });
      has_room = has_room && loaded.has_room;
      again = loaded.again;
      loaded_blocks_ += batch.size();
      batch.clear();
    }
    return has_room && !stopping_;
  };
  const error_code error = disk_->load(
      [&](const NamespaceId&, const std::string& text) {
        const auto record = NamespaceRecord::parse(text);
        if (!record)
          return spdlog::warn("disk: the record of a namespace on disk cannot be used: {}", record.error().text);
        store_.with([&](Store& store) { store.load_namespace(*record); });
      },
      [&](const DiskRecord& record) {
        KV_ASSERT(batch.size() < kRecordsPerLock);
        batch.push_back(record);
        if (clock_.now() - reported >= 5s) {
          reported = clock_.now();
          spdlog::info("disk: {} blocks found on disk so far", loaded_blocks_.load());
        }
        return batch.size() < kRecordsPerLock || flush();
      });
  flush();
  return error;
}

/// In small steps: a stop must not wait out a pause of minutes.
void DiskThreads::wait(Duration duration) {
  for (const TimePoint until = clock_.now() + duration; clock_.now() < until && !stopping_;)
    std::this_thread::sleep_for(kPollInterval);
}

void DiskThreads::scrub() {
  KV_ASSERT(disk_ != nullptr);
  yield_to_others();
  for (TimePoint next{}; !stopping_;) {
    // Only while sessions read nothing: a scrub ahead of a get would delay the get.
    if (clock_.now() < next || !reader_.watch().is_idle() || !can_read()) {
      std::this_thread::sleep_for(kScrubWait);
      continue;
    }
    scrubbing_.begin();
    next = scrubber_.step(*disk_);
    scrubbing_.end();
  }
}

std::vector<NodeMetrics::Value> DiskThreads::stats() const {
  const DiskStats disk = last_stats();
  const DrainStats drain = [this] {
    const std::lock_guard lock(mutex_);
    return drain_stats_;
  }();
  return {
      {"disk_is_on", is_on_ && !is_stuck() ? 1.0 : 0.0, false, "1: the disk tier works; 0: it failed or is stuck"},
      {"disk_is_loading", loading_, false, "1: the index is still being rebuilt after a restart"},
      {"disk_loaded_blocks", loaded_blocks_, true, "Records of blocks read after the restart"},
      {"disk_drops_kept", drops_kept_, true, "Drops that a restart does not undo"},
      {"disk_drops_not_kept", drops_not_kept_, true,
       "Drops that hold until the next start only, since no disk took them in time"},
      {"disk_directories_left_out", disk.left_out_count, false,
       "Of several directories, those that failed lately or do not answer"},
      {"disk_directories", disk.directory_count, false, "Directories of the disk tier, those included that leave"},
      {"disk_draining_directories", drain.directory_count, false,
       "Of them, those that were taken out of disk-path and are being emptied"},
      {"disk_draining_blocks", drain.left.block_count, false, "Blocks that are still to be moved out of those"},
      {"disk_draining_bytes", drain.left.bytes, false, "Their bytes"},
      {"disk_drained_blocks", drain.moved.block_count, true, "Blocks moved out of directories that leave"},
      {"disk_drained_bytes", drain.moved.bytes, true, "Their bytes"},
      {"disk_drain_evicted_blocks", drain.evicted_blocks, true,
       "Blocks evicted because the directories that stay have no room for those to be moved"},
      {"disk_drain_lost_blocks", drain.lost_blocks, true,
       "Blocks that a directory that leaves did not give, or gave damaged"},
      {"disk_outages", outages_, true, "Times the disk tier was turned off because the disk failed"},
      {"disk_file_bytes", disk.file_bytes, false, "Bytes of all files of the disk tier"},
      {"disk_written_bytes", disk.written_bytes, true, "Bytes of blocks written to disk"},
      {"disk_device_written_bytes", disk.device_written_bytes, true, "Bytes the device was given for them"},
      {"disk_read_bytes", reader_.read_bytes(), true, "Bytes of blocks read from disk and verified"},
      {"disk_read_failures", reader_.failure_count(), true, "Reads that failed or found damage"},
      {"disk_scrubbed_blocks", scrubber_.block_count(), true, "Blocks read before anybody asked for them"},
      {"disk_scrub_rounds", scrubber_.round_count(), true, "Times that all blocks have been scrubbed"},
      {"disk_scrub_damaged_blocks", scrubber_.damaged_count(), true, "Damaged blocks found so, and dropped"},
      {"disk_read_refusals", reader_.refusal_count(), true, "Reads refused because too much was being read"},
  };
}

}  // namespace kv
