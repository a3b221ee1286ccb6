#include "store/node/jobs/context_keeper.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

Duration time_at_rate(std::uint64_t bytes, std::uint64_t bytes_per_second) {
  return std::chrono::milliseconds(bytes * 1000 / bytes_per_second);
}

}  // namespace

ContextKeeper::ContextKeeper(LockedStore& store, Clock& clock, File file, std::function<std::uint64_t()> wall_us)
    : store_(store),
      clock_(clock),
      wall_us_(std::move(wall_us)),
      work_(std::make_shared<Work>(std::move(file), ClockPair{clock.now(), wall_us_()})) {
  thread_ = std::thread([work = work_] { work_at(*work); });
}

ContextKeeper::~ContextKeeper() { end_or_leave(thread_, *work_); }  // 1

/// Uses the newest readable file.
ContextKeeper::ReadBack ContextKeeper::read_back(Work& work) {
  ReadBack back;
  std::vector<std::size_t> unusable;
  for (File::Found& found : work.file.read()) {
    back.has_file = true;
    auto file = found.text ? read_contexts(*found.text, work.began) : Result<ContextFile, Failure>(found.text.error());
    if (!file) {
      back.trouble.push_back(file.error().text);
      unusable.push_back(found.place);
    } else if (file->written_us >= back.written_us) {
      back.written_us = file->written_us;
      back.is_clock_doubted = file->is_clock_doubted;
      back.contexts = std::move(file->contexts);
    }
  }
  const std::lock_guard lock(work.mutex);
  work.to_set_aside = std::move(unusable);
  return back;
}

void ContextKeeper::work_at(Work& work) {
  auto back = std::make_unique<ReadBack>();
  within_border(NodeThread::kContexts, [&] { *back = read_back(work); });
  std::unique_lock lock(work.mutex);
  work.was_read = std::move(back);
  work.is_read = true;
  for (;;) {
    work.changed.notify_all();
    work.changed.wait(lock, [&work] { return work.ends || work.job; });
    if (work.ends) break;
    const std::unique_ptr<Job> job = std::move(work.job);
    const std::uint64_t number = work.jobs_given;
    const std::vector<std::size_t> aside = std::exchange(work.to_set_aside, {});
    lock.unlock();
    error_code failure = Errc::kUnavailable;
    std::size_t byte_count = 0;
    within_border(NodeThread::kContexts, [&] {
      const std::string bytes = write_contexts(job->contexts, job->now);
      byte_count = bytes.size();
      for (const std::size_t place : aside) work.file.set_aside(place);
      // A longer file could not be read again: it would count as damaged, and cost all contexts.
      failure = bytes.size() > kContextFileBytesMax ? error_code(Errc::kTooLarge) : work.file.write(bytes);
      if (!failure && job->forgets_aside) failure = work.file.forget_aside();
    });
    lock.lock();
    work.failure = failure;
    ++(failure ? work.failures : work.writes);
    work.bytes = byte_count;
    work.jobs_done = number;
  }
  work.has_ended = true;
  work.changed.notify_all();
}

/// The time to write into a file.
std::uint64_t ContextKeeper::wall_us() const {
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(clock_.now() - least_.steady).count();
  return std::max(wall_us_(), least_.wall_us == 0 ? 0 : least_.wall_us + static_cast<std::uint64_t>(since));
}

void ContextKeeper::take_over() {
  std::unique_ptr<ReadBack> back;
  {
    const std::lock_guard lock(work_->mutex);
    if (!work_->was_read) return;
    back = std::move(work_->was_read);
  }
  has_taken_over_ = true;
  for (const std::string& trouble : back->trouble)
    spdlog::warn("{}; the node starts without the contexts in it", trouble);
  damaged_ += back->trouble.size();
  figures_due_ = clock_.now() + kFigurePause;
  if (!back->has_file) return;
  const std::uint64_t began = work_->began.wall_us, written = back->written_us;
  // A clock that is far off is detected by the next start; a clock set right later must not stay behind.
  constexpr std::uint64_t kAwayUsMax = kAwayMax / std::chrono::microseconds(1);
  if (written > began && written - began <= kAwayUsMax) least_ = {work_->began.steady, written};
  is_clock_doubted_ = back->is_clock_doubted;
  if (back->is_clock_doubted) {
    spdlog::warn(
        "contexts: by this machine's clock their file was written {} hours {}. The clock is wrong, or was: no time has "
        "passed for them since. Set the clock right; extend or delete those that should have ended",
        (written > began ? written - began : began - written) / 3'600'000'000,
        written > began ? "in the future" : "ago");
  }
  std::uint64_t blocks = 0;
  for (KeptContext& context : back->contexts) {
    const std::size_t count = context.hashes.size();
    const auto how = store_.with([&](Store& store) { return store.restore_context(std::move(context), clock_.now()); });
    switch (how) {
      case ContextDesk::Restored::kBack:
        ++back_;
        blocks += count;
        break;
      case ContextDesk::Restored::kEnded: ++ended_; break;
      case ContextDesk::Restored::kRefused: ++refused_; break;
    }
  }
  is_dirty_ = ended_ + refused_ > 0 || !back->trouble.empty();
  spdlog::info("contexts: {} are back, of {} blocks; {} ended while the node was down{}", back_.load(), blocks,
               ended_.load(),
               refused_ == 0 ? "" : fmt::format("; {} were made anew meanwhile, or are over a bound", refused_.load()));
}

bool ContextKeeper::start(std::chrono::milliseconds patience) {
  {
    std::unique_lock lock(work_->mutex);
    work_->changed.wait_for(lock, patience, [this] { return work_->is_read; });
  }
  const std::lock_guard lock(mutex_);
  if (!has_taken_over_) take_over();
  if (!has_taken_over_) spdlog::warn("contexts: the disk is slow; what it has of them comes later");
  return has_taken_over_;
}

void ContextKeeper::tick(bool may_write) {
  const std::lock_guard lock(mutex_);
  if (!has_taken_over_) take_over();
  if (!has_taken_over_ || !may_write) return;
  const TimePoint now = clock_.now();
  error_code failure;
  bool is_busy = false;
  {
    const std::lock_guard working(work_->mutex);
    is_busy = work_->jobs_done < work_->jobs_given;
    failure = work_->failure;
  }
  if (is_busy) return;
  if (failure && failure != told_) spdlog::warn("contexts: cannot be kept for a restart: {}", failure.message());
  told_ = failure;
  const ContextDesk::Changes changes = store_.with([](Store& store) { return store.context_changes(); });
  const bool is_due = ((changes.orders != written_.orders || is_dirty_ || failure) && now >= order_due_) ||
                      (changes.uses != written_.uses && now >= use_due_) || (changes.count > 0 && now >= figures_due_);
  if (is_due) hand_over(/*forgets_aside=*/false);
}

/// Replaces an older job that still waits to be written.
std::uint64_t ContextKeeper::hand_over(bool forgets_aside) {
  auto job = std::make_unique<Job>();
  job->forgets_aside = forgets_aside;
  ContextId after{};
  bool has_more = true;
  // Changes behind the cursor count as not written yet.
  written_ = store_.with([](Store& store) { return store.context_changes(); });
  while (has_more)
    has_more = store_.with([&](Store& store) { return store.copy_contexts(after, job->contexts, clock_.now()); });
  job->now = {clock_.now(), wall_us()};
  is_dirty_ = false;
  const std::lock_guard lock(work_->mutex);
  if (work_->job) job->forgets_aside = job->forgets_aside || work_->job->forgets_aside;
  work_->job = std::move(job);
  work_->changed.notify_all();
  const std::uint64_t bytes = work_->bytes;
  order_due_ = clock_.now() + std::max(kOrderPause, time_at_rate(bytes, kOrderBytesPerSecond));
  use_due_ = clock_.now() + std::max(kUsePause, time_at_rate(bytes, kUseBytesPerSecond));
  figures_due_ = clock_.now() + kFigurePause;
  return ++work_->jobs_given;
}

std::string ContextKeeper::wait_for(std::uint64_t job, std::chrono::milliseconds patience) {
  std::unique_lock lock(work_->mutex);
  if (!work_->changed.wait_for(lock, patience, [&] { return work_->jobs_done >= job; })) return "the disk is slow";
  return work_->failure ? work_->failure.message() : "";
}

std::string ContextKeeper::write(bool forgets_aside, std::chrono::milliseconds patience) {
  std::uint64_t job = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!has_taken_over_) take_over();
    if (!has_taken_over_) return "the disk is slow";  // 3
    job = hand_over(forgets_aside);
  }
  return wait_for(job, patience);
}

std::string ContextKeeper::write_now(std::chrono::milliseconds patience) { return write(false, patience); }
std::string ContextKeeper::forget(std::chrono::milliseconds patience) { return write(true, patience); }

bool ContextKeeper::stop(bool may_write, std::chrono::milliseconds patience) {
  bool has_any = false;
  {
    const std::lock_guard lock(mutex_);
    if (!has_taken_over_) take_over();
    const ContextDesk::Changes changes = store_.with([](Store& store) { return store.context_changes(); });
    has_any = changes.count > 0 || changes.orders != written_.orders || is_dirty_;
    if (has_taken_over_ && !has_any) return true;  // there are no contexts to write or to delete from the file
  }
  const std::string why = may_write ? write_now(patience) : "the disk is not open";
  if (why.empty()) return true;
  spdlog::warn("contexts: not kept for the next start: {}", why);
  return false;
}

std::vector<NodeMetrics::Value> ContextKeeper::stats() const {
  const std::lock_guard lock(work_->mutex);
  return {{"context_file_bytes", work_->bytes, false, "Of the file that keeps contexts over a restart"},
          {"context_file_writes", work_->writes, true, "Times that it was written"},
          {"context_file_failures", work_->failures, true, "Times that it could not be written"},
          {"context_file_damaged", damaged_, false, "Such files that the start could not use"},
          {"context_clock_doubted", is_clock_doubted_, false,
           "1: the clock of this start is far from that of the one before; contexts have the time left that they had"},
          {"contexts_back", back_, false, "Contexts that the start found in it, and that live on"},
          {"contexts_not_back", ended_ + refused_, false,
           "Contexts in it that had ended, were made anew meanwhile, or are over a bound"}};
}

}  // namespace kv
