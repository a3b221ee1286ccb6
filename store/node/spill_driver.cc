#include "store/node/spill_driver.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "base/checksum.h"

namespace kv {
namespace {

constexpr Duration kPollInterval = 20ms;  ///< Between looks at the store when nobody notifies, and while stopping.
constexpr int kNiceness = 10;             ///< Of threads that nobody waits for.
constexpr std::chrono::milliseconds kScrubWait{5};
constexpr Duration kErasuresWait = 1s;        ///< At most, before they are written out.
constexpr std::size_t kRecordsPerLock = 128;  ///< Of a load: some ten microseconds under the lock.

/// Of this thread: whoever serves goes first. (On Linux a niceness is a thread's own.)
void yield_to_others() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness); }

std::int64_t to_ns(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Trying again will not help: somebody has to change something first.
bool is_refusal(error_code error) {
  if (error == Errc::kUnsupported || error == Errc::kMismatch || error == Errc::kBusy) return true;
  return error.category() == boost::system::generic_category() &&
         std::ranges::any_of(std::initializer_list<int>{EACCES, EPERM, ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG},
                             [&](int number) { return error.value() == number; });
}

}  // namespace

SpillDriver::SpillDriver(LockedStore& store, OpenDisk open, Clock& clock, const SpillDriverConfig& config)
    : store_(store),
      open_(std::move(open)),
      clock_(clock),
      config_(config),
      scrubber_(store, clock, config.scrub_bytes_per_second),
      readers_(config.read_threads) {}

SpillDriver::~SpillDriver() {
  stop(false);
  if (writer_.joinable()) writer_.join();  // which has joined the opener
  readers_.join();
}

std::string SpillDriver::start(Duration patience) {
  loading_ = true;
  auto refused = accepted_.get_future();
  opener_ = std::thread([this] {
    open_disk();
    if (open_disk_ != nullptr) load();
    loading_ = false;
    if (open_disk_ != nullptr) scrub();
  });
  writer_ = std::thread([this] {
    yield_to_others();
    write_loop();
    opener_.join();
    if (saves_ && is_on_) save();
    if (open_disk_ != nullptr) flush();
    written_.set_value();
  });
  return refused.wait_for(patience) == std::future_status::ready ? refused.get() : "";
}

bool SpillDriver::stop(bool save) {
  if (stopping_.exchange(true) || !writer_.joinable()) return true;
  saves_ = save;
  notify();
  auto written = written_.get_future();
  std::uint64_t finished = finished_calls_;
  TimePoint last_sign = clock_.now();
  while (written.wait_for(kPollInterval) != std::future_status::ready || reading_count_ > 0) {
    if (finished != finished_calls_) {
      finished = finished_calls_;
      last_sign = clock_.now();
    }
    if (clock_.now() - last_sign > config_.give_up_after) return false;
  }
  return true;
}

void SpillDriver::flush() {
  flush_due_ = TimePoint::max();
  busy_since_ns_ = to_ns(clock_.now());
  const error_code error = disk_->flush();
  busy_since_ns_ = 0;
  ++finished_calls_;
  if (error) failed("flush", error);
}

/// Writes what is in memory, as long as the disk works.
void SpillDriver::save() {
  const auto in_memory = [this] { return store_.with([](Store& store) { return store.stats().allocated_bytes; }); };
  spdlog::info("spill: writing what is in memory, {} MiB", in_memory() >> 20);
  TimePoint reported = clock_.now();
  while (is_on_ && work_once(/*everything=*/true)) {
    if (clock_.now() - reported < 5s) continue;
    reported = clock_.now();
    spdlog::info("spill: {} MiB to go", in_memory() >> 20);
  }
}

void SpillDriver::notify() {
  {
    const std::lock_guard lock(mutex_);
    if (is_notified_) return;
    is_notified_ = true;
  }
  wake_.notify_one();
}

// -- writing

void SpillDriver::write_loop() {
  TimePoint allowed_from = clock_.now();  // by the write budget, or after a failure
  while (!stopping_) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kPollInterval, [this] { return is_notified_ || stopping_; });
      is_notified_ = false;
    }
    if (is_on_ && clock_.now() >= flush_due_) flush();
    while (!stopping_ && open_disk_ != nullptr && clock_.now() >= allowed_from) {
      const std::uint64_t before = disk_->stats().written_bytes;
      if (!work_once(/*everything=*/false)) {
        if (!is_on_) allowed_from = clock_.now() + config_.retry_after;  // then what is due is the trial
        break;
      }
      if (config_.write_bytes_per_second > 0) {
        const auto written = static_cast<double>(disk_->stats().written_bytes - before);
        allowed_from = clock_.now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
                                          written / static_cast<double>(config_.write_bytes_per_second)));
      }
    }
  }
}

/// False when there is nothing to do, or the disk fails.
bool SpillDriver::work_once(bool everything) {
  if (std::vector<DiskPlace> places = disk_->places(); places != places_) {
    places_ = places;
    store_.with([&](Store& store) { store.set_disk_places(std::move(places)); });
  }
  const SpillWork work =
      store_.with([&](Store& store) { return store.spill_work(config_.batch_bytes, clock_.now(), everything); });
  if (work.empty()) return false;
  busy_since_ns_ = to_ns(clock_.now());
  const SpillOutcome outcome = carry_out(work, *disk_);
  busy_since_ns_ = 0;
  ++finished_calls_;
  store_.with([&](Store& store) { store.finish_spill(work, outcome); });
  if (outcome.lost_count > 0)
    spdlog::warn("spill: {} blocks were damaged or gone when their segment was given back", outcome.lost_count);
  if (outcome.error) {
    failed("write", outcome.error);
    return false;
  }
  if (!work.erased.empty() && flush_due_ == TimePoint::max()) flush_due_ = clock_.now() + kErasuresWait;
  if (!is_on_) {
    {
      const std::lock_guard lock(mutex_);
      trouble_.clear();
    }
    is_on_ = true;
    spdlog::info("spill: the disk works again");
  }
  return true;
}

void SpillDriver::failed(const char* what, error_code error) {
  const bool was_on = is_on_.exchange(false);
  const std::lock_guard lock(mutex_);
  trouble_ = std::string(what) + ": " + error.message();
  if (!was_on) return;
  ++outages_;
  spdlog::error(
      "spill: off, since the disk failed ({}); blocks are evicted unwritten, and it is tried again every {} s",
      trouble_, std::chrono::duration_cast<std::chrono::seconds>(config_.retry_after).count());
}

bool SpillDriver::waits_long(std::int64_t since_ns) const {
  return to_ns(clock_.now()) - since_ns >
         std::chrono::duration_cast<std::chrono::nanoseconds>(config_.stuck_after).count();
}

bool SpillDriver::is_stuck() const {
  const std::int64_t since = busy_since_ns_;
  const bool is_stuck = (since != 0 && waits_long(since)) || (reading_count_ > 0 && waits_long(read_quiet_since_ns_));
  if (is_stuck_said_.exchange(is_stuck) != is_stuck) {
    if (is_stuck)
      spdlog::error("spill: off, since the disk does not answer; blocks are evicted unwritten until it does");
    else
      spdlog::info("spill: the disk answers again");
  }
  return is_stuck;
}

std::string SpillDriver::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

// -- reading

void SpillDriver::read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, ReadDone done) {
  if (open_disk_ == nullptr || stopping_ || reading_bytes_ > config_.read_queue_bytes_max) {
    ++read_refusals_;
    return done(Errc::kBusy);
  }
  reading_bytes_ += block_bytes;
  if (reading_count_ == 0) read_quiet_since_ns_ = to_ns(clock_.now());
  ++reading_count_;
  asio::post(readers_, [this, key, seed, block_bytes, done = std::move(done)] {
    const TimePoint began = clock_.now();
    auto block = stopping_ ? Result<DiskBlock>(Errc::kBusy) : disk_->read(key);
    read_quiet_since_ns_ = to_ns(clock_.now());
    ++finished_calls_;
    if (block && (block->bytes.size() != block_bytes || !verify_block(seed, block->bytes, block->checksums)))
      block = Errc::kCorruptBlock;
    if (block) {
      read_bytes_ += block_bytes;
      const double seconds = std::chrono::duration<double>(clock_.now() - began).count();
      const double before = read_seconds_per_byte_;
      read_seconds_per_byte_ = before + (seconds / static_cast<double>(block_bytes) - before) / 16;
    } else if (!stopping_) {
      ++read_failures_;
      spdlog::debug("spill: block under key {:x} of epoch {}: {}", static_cast<std::uint64_t>(key) & ((1ull << 40) - 1),
                    static_cast<std::uint64_t>(key) >> 40, block.error().message());
    }
    reading_bytes_ -= block_bytes;
    done(std::move(block));
    --reading_count_;  // last: stop() waits for it
  });
}

std::chrono::microseconds SpillDriver::estimate_read(std::uint64_t bytes) const {
  const double seconds =
      read_seconds_per_byte_ * static_cast<double>(bytes + reading_bytes_) / static_cast<double>(config_.read_threads);
  return std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
}

// -- after a start

/// Tries until there is a disk, or the driver is stopped.
void SpillDriver::open_disk() {
  bool is_accepted = false;
  const auto accept = [&](const std::string& refusal) {
    if (!std::exchange(is_accepted, true)) accepted_.set_value(refusal);
  };
  bool is_said = false;
  for (TimePoint next{}; !stopping_;) {
    if (clock_.now() < next) {
      std::this_thread::sleep_for(std::chrono::duration_cast<std::chrono::nanoseconds>(kPollInterval));
      continue;
    }
    std::string why;
    auto opened = open_([&] { accept(""); }, &why);
    ++finished_calls_;
    if (opened) {
      disk_ = std::move(*opened);
      store_.with([&](Store& store) { store.begin_load(clock_.now(), disk_->epoch()); });
      {
        const std::lock_guard lock(mutex_);
        trouble_.clear();
      }
      is_on_ = true;
      open_disk_ = disk_.get();
      break;
    }
    {
      const std::lock_guard lock(mutex_);
      trouble_ = "open: " + why;
    }
    if (!std::exchange(is_said, true)) {
      spdlog::error("spill: off: {}; it is tried again every {} s", why,
                    std::chrono::duration_cast<std::chrono::seconds>(config_.retry_after).count());
    }
    accept(is_refusal(opened.error()) ? why : "");
    next = clock_.now() + config_.retry_after;
  }
  accept("");
}

void SpillDriver::load() {
  const TimePoint began = clock_.now();
  std::vector<DiskRecord> batch;
  bool has_room = true;
  const auto flush = [&] {
    if (!batch.empty()) has_room = store_.with([&](Store& store) { return store.load_spilled(batch); });
    loaded_blocks_ += batch.size();
    ++finished_calls_;
    batch.clear();
    return has_room && !stopping_;
  };
  TimePoint reported = began;
  const error_code error = disk_->load(
      [&](const NamespaceId&, const std::string& text) {
        std::string why;
        const auto record = NamespaceRecord::parse(text, &why);
        const bool opened = record && store_.with([&](Store& store) { return store.open(*record).has_value(); });
        if (!opened) spdlog::warn("spill: a namespace of the disk cannot be opened: {}", why);
      },
      [&](const DiskRecord& record) {
        batch.push_back(record);
        if (clock_.now() - reported >= 5s) {
          reported = clock_.now();
          spdlog::info("spill: {} blocks found on disk so far", loaded_blocks_.load());
        }
        return batch.size() < kRecordsPerLock || flush();
      });
  if (!stopping_) flush();
  const bool is_whole = !error && !stopping_;
  const std::uint64_t count = store_.with([&](Store& store) { return store.end_load(is_whole); });
  if (error) failed("load", error);
  spdlog::info("spill: {} blocks are there again after {} ms", count,
               std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - began).count());
  notify();
}

void SpillDriver::scrub() {
  yield_to_others();
  for (TimePoint next{}; !stopping_;) {
    if (clock_.now() < next || reading_count_ > 0 || !can_read()) {
      std::this_thread::sleep_for(kScrubWait);
      continue;
    }
    read_quiet_since_ns_ = to_ns(clock_.now());
    ++reading_count_;  // a disk that hangs is found out here as well
    next = scrubber_.step(*disk_);
    --reading_count_;
    ++finished_calls_;
  }
}

std::vector<NodeMetrics::Value> SpillDriver::stats() const {
  const Disk* const open_disk = open_disk_;
  const DiskStats disk = open_disk != nullptr ? open_disk->stats() : DiskStats();
  const auto number = [](auto value) { return static_cast<double>(value); };
  return {
      {"disk_is_on", is_on_ && !is_stuck() ? 1.0 : 0.0, false, "1: the disk tier works; 0: it failed or is stuck"},
      {"disk_is_loading", loading_ ? 1.0 : 0.0, false, "1: the index is still being rebuilt after a restart"},
      {"disk_loaded_blocks", number(loaded_blocks_.load()), true, "Records of blocks read after the restart"},
      {"disk_outages", number(outages_.load()), true, "Times the disk tier was turned off because the disk failed"},
      {"disk_file_bytes", number(disk.file_bytes), false, "Bytes of all files of the disk tier"},
      {"disk_written_bytes", number(disk.written_bytes), true, "Bytes of blocks written to disk"},
      {"disk_device_written_bytes", number(disk.device_written_bytes), true, "Bytes the device was given for them"},
      {"disk_read_bytes", number(read_bytes_.load()), true, "Bytes of blocks read from disk and verified"},
      {"disk_read_failures", number(read_failures_.load()), true, "Reads that failed or found damage"},
      {"disk_scrubbed_blocks", number(scrubber_.block_count()), true, "Blocks read before anybody asked for them"},
      {"disk_scrub_rounds", number(scrubber_.round_count()), true, "Times that all blocks have been scrubbed"},
      {"disk_scrub_damaged_blocks", number(scrubber_.damaged_count()), true, "Damaged blocks found so, and dropped"},
      {"disk_read_refusals", number(read_refusals_.load()), true, "Reads refused because too much was being read"},
  };
}

}  // namespace kv
