#include "client/tools/bench/run_thread.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/tools/bench/block_pattern.h"
#include "client/tools/bench/work_memory.h"

namespace kv {
namespace {

NamespaceRecord run_record(const RunOptions& options) {
  std::map<std::string, std::string> fields = {
      {"model", "kvstore-bench-run"}, {"salt", options.salt}, {"tenant", options.tenant}};
  if (options.is_set) fields["kind"] = "set";
  // Any number would do: tokens are not hashed here.
  if (!options.is_set) fields["block_size"] = "16";
  fields[options.is_set ? "block_bytes_max" : "block_bytes"] = std::to_string(options.block_bytes);
  auto record = NamespaceRecord::from_fields(std::move(fields));
  if (!record) throw CLI::ValidationError("run", record.error().text);
  return *std::move(record);
}

/// Names for the blocks of one chain: any distinct 32 bytes; hashing tokens would be measured too.
std::vector<BlockHash> make_chain(std::uint64_t seed, std::size_t block_count) {
  std::vector<BlockHash> chain(block_count);
  fill_pattern(seed, std::as_writable_bytes(std::span(chain)));
  return chain;
}

class RunThread {
 public:
  RunThread(const RunOptions& options, std::size_t thread, RunWindow& window)
      : options_(options),
        window_(window),
        record_(run_record(options)),
        // Per thread and batch size: threads must not share chains, or one would get another's puts.
        seed_(0x5EED0000 + thread * 0x1000000 + options.batch),
        client_(make_config(options), options.busy_poll),
        space_(answer_of(client_.open(record_, options.node.deadline), "cannot open a namespace at the node")),
        place_bytes_(options.batch * options.block_bytes),
        // At least a place for each call in flight, however large a batch is.
        place_count_(std::max(options.memory_bytes / place_bytes_, options.concurrency)),
        memory_(client_, options.transport, place_count_ * place_bytes_) {
    KV_ASSERT(place_bytes_ > 0 && place_count_ >= options.concurrency && memory_.bytes().size() >= place_bytes_);
    const std::size_t chain_count =
        options.call == RunCall::kPut ? 0 : options.block_count / options.batch / options.thread_count;
    for (std::size_t c = 0; c < chain_count; ++c) {
      chains_.push_back(make_chain(seed_ ^ (c + 1) * 0x9E3779B97F4A7C15, options.batch));
    }
  }

  /// Puts every chain, several at a time: one by one, each put of small blocks would wait for a round trip.
  void fill() {
    std::vector<asio::awaitable<void>> tasks;
    const std::size_t task_count = std::min({place_count_, chains_.size(), std::size_t{16}});
    for (std::size_t task = 0; task < task_count; ++task) tasks.push_back(fill_chains(task, task_count));
    client_.run_all(std::move(tasks));
  }

  RunResult measure() {
    std::vector<asio::awaitable<void>> tasks;
    for (std::size_t i = 0; i < options_.concurrency; ++i) tasks.push_back(call_repeatedly(i));
    client_.run_all(std::move(tasks));
    return std::move(result_);
  }

 private:
  struct Outcome {
    std::size_t block_count = 0;
    error_code why;
  };

  static ClientConfig make_config(const RunOptions& options) {
    ClientConfig config = client_config(options.node, "kvstore-bench run");
    config.connections_per_node = options.connections;
    // A client that refuses calls as busy would measure its own limit.
    config.calls_max = std::max<std::size_t>(config.calls_max, options.concurrency + 16);
    config.region_bytes_max = std::max<std::size_t>(config.region_bytes_max, 4 * options.memory_bytes);
    config.verify = !options.no_verify;
    return config;
  }

  std::span<std::byte> place(std::size_t index) const {
    KV_ASSERT(index < place_count_);
    return memory_.bytes().subspan(index * place_bytes_, place_bytes_);
  }

  /// Every step-th chain, through one place: a put has been answered before its place is filled for the next.
  asio::awaitable<void> fill_chains(std::size_t first, std::size_t step) {
    const std::span<std::byte> memory = place(first);
    const auto blocks = blocks_in(memory, options_.block_bytes);
    const std::vector<std::span<const std::byte>> sources(blocks.begin(), blocks.end());
    for (std::size_t c = first; c < chains_.size(); c += step) {
      for (std::size_t i = 0; i < options_.batch; ++i) {
        fill_pattern(pattern_seed(record_.id(), chains_[c][i]), blocks[i]);
      }
      const Outcome put = co_await put_blocks(chains_[c], sources);
      if (put.block_count < options_.batch) {
        throw std::runtime_error("cannot fill the working set: the node refused blocks: " + describe(put.why));
      }
      window_.filled_blocks += options_.batch;
    }
  }

  /// One call after the other until the window ends. Each task chooses among its own places at random: two calls into
  /// one place would race, and a reused place would stay in the processor's cache, unlike an engine's pages.
  asio::awaitable<void> call_repeatedly(std::size_t task) {
    const std::size_t own_count = place_count_ / options_.concurrency;  // this task's places
    KV_ASSERT(own_count > 0 && (options_.call == RunCall::kPut || !chains_.empty()));
    QuickRandom random(seed_ + task * 7919 + 1);
    std::vector<std::span<std::byte>> targets;
    std::vector<std::span<const std::byte>> sources;
    std::vector<BlockHash> fresh;
    const auto now = [] { return std::chrono::steady_clock::now(); };
    asio::steady_timer pace(co_await asio::this_coro::executor, now());
    TimePoint start = now();
    do {
      // Paced: turns missed by a slow call are dropped, since a burst afterwards would measure its own queue.
      if (options_.calls_per_second > 0) {
        pace.expires_at(std::max(pace.expiry(), start) +
                        std::chrono::duration_cast<Duration>(1s) / static_cast<long>(options_.calls_per_second));
        co_await pace.async_wait(asio::use_awaitable);
      }
      targets = blocks_in(place(task * own_count + random.below(own_count)), options_.block_bytes);
      Hashes chain;
      if (options_.call == RunCall::kPut) {
        sources.assign(targets.begin(), targets.end());
        // A put of known blocks would move no bytes, so each has new names.
        fresh = make_chain(static_cast<std::uint64_t>(start.time_since_epoch().count()) ^ (seed_ + task) << 40,
                           options_.batch);
        chain = fresh;
      } else {
        chain = chains_[random.below(chains_.size())];
      }
      start = now();
      Outcome outcome;
      switch (options_.call) {
        case RunCall::kGet: outcome = co_await get_blocks(chain, targets); break;
        case RunCall::kPut: outcome = co_await put_blocks(chain, sources); break;
        case RunCall::kMatch: outcome = co_await match_blocks(chain); break;
      }
      const TimePoint end = now();
      // A bug in this program: further calls would be as fast, and as empty, and would look like a good result.
      if (outcome.why == Errc::kBadRequest) throw std::runtime_error(describe(outcome.why));
      count(outcome, start, end);
      if (options_.check && options_.call == RunCall::kGet) check(chain.first(outcome.block_count), targets);
      start = now();
    } while (start < window_.end);
  }

  // The kinds of call. The spans live until completion.

  asio::awaitable<Outcome> get_blocks(Hashes hashes, TargetBlocks targets) {
    if (options_.is_set) {
      const GetOptions set_options{.deadline = options_.node.deadline};
      const auto got = co_await client_->get_set(space_, hashes, targets, set_options);
      co_return got ? Outcome{got->landed_count, got->why} : Outcome{0, got.error()};
    }
    const GetOptions get_options{.deadline = options_.node.deadline};
    const auto got = co_await client_->get(space_, hashes, targets, get_options);
    co_return got ? Outcome{got->block_count, got->why} : Outcome{0, got.error()};
  }

  asio::awaitable<Outcome> put_blocks(Hashes hashes, SourceBlocks sources) {
    if (options_.is_set) {
      const PutOptions set_options{.deadline = options_.node.deadline};
      const auto put = co_await client_->put_set(space_, hashes, sources, set_options);
      co_return put ? Outcome{put->stored + put->already_stored, put->why} : Outcome{0, put.error()};
    }
    const PutOptions put_options{.deadline = options_.node.deadline};
    const auto put = co_await client_->put(space_, hashes, sources, put_options);
    co_return put ? Outcome{put->stored + put->already_stored, put->why} : Outcome{0, put.error()};
  }

  asio::awaitable<Outcome> match_blocks(Hashes hashes) {
    if (options_.is_set) {
      const MatchOptions set_options{.deadline = options_.node.deadline};
      const auto match = co_await client_->match_set(space_, hashes, set_options);
      co_return match ? Outcome{match->held_count, match->why} : Outcome{0, match.error()};
    }
    const MatchOptions match_options{.deadline = options_.node.deadline};
    const auto match = co_await client_->match(space_, hashes, match_options);
    co_return match ? Outcome{match->block_count, match->why} : Outcome{0, match.error()};
  }

  void count(const Outcome& outcome, TimePoint start, TimePoint end) {
    KV_ASSERT(outcome.block_count <= options_.batch && start <= end);
    // All calls, measured or not: the progress line also moves during the warm-up.
    window_.done_blocks.fetch_add(outcome.block_count, std::memory_order_relaxed);
    // Counted by its end, which evens out over the window for any length of call.
    if (end < window_.begin || end >= window_.end) {
      ++result_.unmeasured_calls;
      return;
    }
    ++result_.calls;
    result_.blocks += outcome.block_count;
    result_.missing_blocks += options_.batch - outcome.block_count;
    if (outcome.why) ++result_.reasons[describe(outcome.why)];
    result_.latency.record(end - start);
  }

  void check(Hashes chain, const std::vector<std::span<std::byte>>& blocks) {
    for (std::size_t i = 0; i < chain.size(); ++i) {
      result_.wrong_bytes += count_wrong_bytes(pattern_seed(record_.id(), chain[i]), blocks[i]);
    }
  }

  const RunOptions& options_;
  RunWindow& window_;
  NamespaceRecord record_;
  std::uint64_t seed_;
  ToolClient client_;
  Space space_;
  std::size_t place_bytes_, place_count_;  ///< A place holds one batch, of one call in flight at a time.
  WorkMemory memory_;
  std::vector<std::vector<BlockHash>> chains_;  ///< The working set.
  RunResult result_;
};

}  // namespace

/// The latch is counted down however filling ends, since the main thread waits for all threads.
RunResult run_thread(const RunOptions& options, std::size_t thread, RunWindow& window) {
  std::unique_ptr<RunThread> work;
  try {
    work = std::make_unique<RunThread>(options, thread, window);
    work->fill();
  } catch (...) {
    window.is_cancelled = true;
    window.ready.count_down();
    throw;
  }
  window.ready.count_down();
  window.go.wait();
  return window.is_cancelled ? RunResult{} : work->measure();
}

}  // namespace kv
