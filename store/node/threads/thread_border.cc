#include "store/node/threads/thread_border.h"

#include <spdlog/spdlog.h>

#include <atomic>

#include "base/text/printable.h"

namespace kv {
namespace {

struct Border {
  std::atomic<std::uint64_t> failures{0}, unsaid{0};
  std::atomic<std::int64_t> said_ms{-1'000'000};
};
std::array<Border, kNodeThreadNames.size()> borders;

Border& at(NodeThread thread) { return borders[static_cast<std::size_t>(thread)]; }

std::string words_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return printable(std::string_view(error.what()).substr(0, 512));
  } catch (...) {
    return "something that is no std::exception";
  }
}

}  // namespace

/// At most one line a second for each thread: a peer's input may come a thousand times a second.
void note_thread_failure(NodeThread thread, std::exception_ptr thrown) noexcept {
  Border& border = at(thread);
  ++border.failures;
  const std::int64_t now_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
  std::int64_t said_ms = border.said_ms;
  if (now_ms - said_ms < 1000 || !border.said_ms.compare_exchange_strong(said_ms, now_ms)) {
    ++border.unsaid;
    return;
  }
  try {
    const std::uint64_t unsaid = border.unsaid.exchange(0);
    spdlog::error("thread {}: {}; it goes on{}", kNodeThreadNames[static_cast<std::size_t>(thread)], words_of(thrown),
                  unsaid == 0 ? "" : fmt::format(" ({} failures before were not written)", unsaid));
  } catch (...) {  // out of memory for the text; the failure is counted
  }
}

std::uint64_t thread_failure_count(NodeThread thread) noexcept { return at(thread).failures; }

}  // namespace kv
