#include "store/node/spill_driver.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>

#include "base/checksum.h"

namespace kv {
namespace {

constexpr Duration kPollInterval = 20ms;      ///< Between looks at the store when nobody notifies.
constexpr std::size_t kRecordsPerLock = 128;  ///< Of a load: some ten microseconds under the lock.

std::int64_t to_ns(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

SpillDriver::SpillDriver(LockedStore& store, std::unique_ptr<Disk> disk, Clock& clock, const SpillDriverConfig& config)
    : store_(store), disk_(std::move(disk)), clock_(clock), config_(config), readers_(config.read_threads) {}

SpillDriver::~SpillDriver() { stop(false); }

void SpillDriver::start() {
  loading_ = true;
  loader_ = std::thread([this] { load(); });
  writer_ = std::thread([this] { write_loop(); });
}

void SpillDriver::stop(bool save) {
  if (stopping_.exchange(true)) return;
  notify();
  if (loader_.joinable()) loader_.join();
  if (writer_.joinable()) writer_.join();
  readers_.join();
  if (save && is_on_) {
    const auto in_memory = [this] { return store_.with([](Store& store) { return store.stats().allocated_bytes; }); };
    spdlog::info("spill: writing what is in memory, {} MiB", in_memory() >> 20);
    TimePoint reported = clock_.now();
    while (is_on_ && work_once(/*everything=*/true)) {
      if (clock_.now() - reported < 5s) continue;
      reported = clock_.now();
      spdlog::info("spill: {} MiB to go", in_memory() >> 20);
    }
  }
  if (const error_code error = disk_->flush()) spdlog::warn("spill: flush: {}", error.message());
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
    while (!stopping_ && clock_.now() >= allowed_from) {
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
  const SpillWork work =
      store_.with([&](Store& store) { return store.spill_work(config_.batch_bytes, clock_.now(), everything); });
  if (work.empty()) return false;
  busy_since_ns_ = to_ns(clock_.now());
  const SpillOutcome outcome = carry_out(work, *disk_);
  busy_since_ns_ = 0;
  store_.with([&](Store& store) { store.finish_spill(work, outcome); });
  if (outcome.lost_count > 0)
    spdlog::warn("spill: {} blocks were damaged or gone when their segment was given back", outcome.lost_count);
  if (outcome.error) {
    failed("write", outcome.error);
    return false;
  }
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

bool SpillDriver::is_stuck() const {
  const std::int64_t since = busy_since_ns_;
  return since != 0 && to_ns(clock_.now()) - since >
                           std::chrono::duration_cast<std::chrono::nanoseconds>(config_.stuck_after).count();
}

std::string SpillDriver::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

// -- reading

void SpillDriver::read(DiskKey key, std::uint64_t seed, std::size_t block_bytes, ReadDone done) {
  if (stopping_ || reading_bytes_ > config_.read_queue_bytes_max) {
    ++read_refusals_;
    return done(Errc::kBusy);
  }
  reading_bytes_ += block_bytes;
  asio::post(readers_, [this, key, seed, block_bytes, done = std::move(done)] {
    const TimePoint began = clock_.now();
    auto block = disk_->read(key);
    if (block && (block->bytes.size() != block_bytes || !verify_block(seed, block->bytes, block->checksums)))
      block = Errc::kCorruptBlock;
    if (block) {
      read_bytes_ += block_bytes;
      const double seconds = std::chrono::duration<double>(clock_.now() - began).count();
      const double before = read_seconds_per_byte_;
      read_seconds_per_byte_ = before + (seconds / static_cast<double>(block_bytes) - before) / 16;
    } else {
      ++read_failures_;
      spdlog::warn("spill: block under key {:x} of epoch {}: {}", static_cast<std::uint64_t>(key) & ((1ull << 40) - 1),
                   static_cast<std::uint64_t>(key) >> 40, block.error().message());
    }
    reading_bytes_ -= block_bytes;
    done(std::move(block));
  });
}

std::chrono::microseconds SpillDriver::estimate_read(std::uint64_t bytes) const {
  const double seconds =
      read_seconds_per_byte_ * static_cast<double>(bytes + reading_bytes_) / static_cast<double>(config_.read_threads);
  return std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
}

// -- after a restart

void SpillDriver::load() {
  const TimePoint began = clock_.now();
  store_.with([&](Store& store) { store.begin_load(clock_.now()); });
  std::vector<DiskRecord> batch;
  bool has_room = true;
  const auto flush = [&] {
    if (!batch.empty()) has_room = store_.with([&](Store& store) { return store.load_spilled(batch); });
    loaded_blocks_ += batch.size();
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
  loading_ = false;
  spdlog::info("spill: {} blocks are there again after {} ms", count,
               std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - began).count());
  notify();
}

std::vector<NodeMetrics::Value> SpillDriver::stats() const {
  const DiskStats disk = disk_->stats();
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
      {"disk_read_refusals", number(read_refusals_.load()), true, "Reads refused because too much was being read"},
  };
}

}  // namespace kv
