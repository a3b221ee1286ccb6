#include "store/node/log/start_watch.h"

#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>

#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdlib>

#include "store/node/log/log_writer.h"

namespace kv {
namespace {

/// Between two steps. A step is 64 MiB of memory, or the registration by a device in one call.
constexpr std::chrono::seconds kPatience(900);
constexpr std::chrono::seconds kTellPause(1);
constexpr std::uint64_t kLoggedFrom = 8ull << 30;  ///< Smaller ones take a second or two.

std::string memory_text(std::uint64_t bytes, std::uint64_t of) {
  const bool is_large = of >= 10ull << 30;
  const int shift = is_large ? 30 : 20;
  return fmt::format("{} of {}{}", bytes >> shift, of >> shift, is_large ? " GiB" : " MiB");
}

}  // namespace

StartWatch::StartWatch(std::uint64_t memory_bytes, LogWriter& log) : memory_bytes_(memory_bytes), log_(log) {
  tell_systemd();
  thread_ = std::thread([this] {
    boost::asio::signal_set signals(context_, SIGTERM, SIGINT);
    signals.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      spdlog::info("signal {}: ended while {}", signal, text());
      log_.finish();
      std::_Exit(0);  // the main thread may be in an endless call
    });
    context_.run();
  });
}

StartWatch::~StartWatch() { finish(); }

void StartWatch::finish() {
  context_.stop();
  if (thread_.joinable()) thread_.join();
}

void StartWatch::touched(std::uint64_t bytes) {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    touched_bytes_ = bytes;
    if (memory_bytes_ >= kLoggedFrom && bytes >= logged_bytes_) {
      spdlog::info("touching memory: {}", memory_text(bytes, memory_bytes_));
      logged_bytes_ = bytes + memory_bytes_ / 10;
    }
    if (now - told_ < kTellPause) return;
    told_ = now;
  }
  tell_systemd();
}

void StartWatch::begins(std::string_view phase) {
  {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
  }
  tell_systemd();
}

std::string StartWatch::text() const {
  const std::lock_guard lock(mutex_);
  return fmt::format("starting: {} of memory are ready{}", memory_text(touched_bytes_, memory_bytes_),
                     phase_.empty() ? "" : "; now " + phase_);
}

/// systemd counts TimeoutStartSec from the start; beyond that it waits this long for the next message.
void StartWatch::tell_systemd() {
  const auto microseconds = std::chrono::microseconds(kPatience).count();
  sd_notify(0, fmt::format("EXTEND_TIMEOUT_USEC={}\nSTATUS={}", microseconds, text()).c_str());
}

}  // namespace kv
