#include "store/node/log/log_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace kv {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

enum class Kind : std::uint8_t { kFile, kPipe, kSocket };

Kind kind_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return Kind::kFile;
  if (S_ISSOCK(status.st_mode)) return Kind::kSocket;
  return S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) ? Kind::kPipe : Kind::kFile;
}

/// The same pipe or terminal, opened anew: the flag O_NONBLOCK then is this process's own, not that of others with the
/// same standard output. -1: it cannot be opened, for example a terminal of another user.
int open_own(int fd) {
  return ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

void begin_thread() {
  ::pthread_setname_np(::pthread_self(), "log");
  // A write to a pipe without a reader fails here, and ends no process.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
}

}  // namespace

/// Thread safety: finish_by(), failed_count() and is_flushed() from any thread, all else on the writer's.
class LogSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  LogSink(int fd, std::unique_ptr<spdlog::formatter> form)
      : base_sink(std::move(form)), kind_(kind_of(fd)), own_(kind_ == Kind::kPipe ? open_own(fd) : -1), fd_(fd) {}
  ~LogSink() override {
    if (own_ >= 0) ::close(own_);
  }
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

  void finish_by(steady_clock::time_point end) {
    is_flushed_ = false;
    end_ = end;
  }
  std::uint64_t failed_count() const { return failed_; }
  bool is_flushed() const { return is_flushed_; }
  /// The thread is this pool's.
  void set_pool(spdlog::details::thread_pool* pool) { pool_ = pool; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    tell_lost(message);
    if (!write_line(message)) ++failed_;
  }
  void flush_() override { is_flushed_ = true; }

  void tell_lost(const spdlog::details::log_msg& next) {
    const std::uint64_t lost = failed_ + pool_->overrun_counter();
    if (lost == told_) return;
    const std::string text =
        fmt::format("log: {} lines were lost: the log's reader was too slow, or gone", lost - told_);
    spdlog::details::log_msg line(next.logger_name, spdlog::level::warn, text);
    if (write_line(line)) told_ = lost;
  }

  bool write_line(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t text;
    if (is_cut_) text.push_back('\n');
    formatter_->format(message, text);
    std::string_view left(text.data(), text.size());
    while (!left.empty()) {
      if (!wait()) break;
      const ssize_t written = write_some(left);
      if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
      if (written < 0 && errno != EAGAIN && errno != EINTR) break;  // full, or without a reader
    }
    // A part of the line was written: the next begins on a line of its own.
    if (left.size() < text.size()) is_cut_ = !left.empty();
    return left.empty();
  }

  /// Until the other end takes some bytes. false: the time is over.
  bool wait() const {
    constexpr int kStepMilliseconds = 50;
    if (kind_ == Kind::kFile) return true;
    pollfd entry{.fd = fd(), .events = POLLOUT, .revents = 0};
    while (true) {
      const bool is_over = steady_clock::now() >= end_.load();
      if (::poll(&entry, 1, is_over ? 0 : kStepMilliseconds) > 0) return true;
      if (is_over) return false;
    }
  }

  ssize_t write_some(std::string_view text) const {
    if (kind_ == Kind::kSocket) return ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    // A pipe that is ready takes as much without waiting, even if it could not be opened anew.
    return ::write(fd(), text.data(),
                   kind_ == Kind::kPipe ? std::min<std::size_t>(text.size(), PIPE_BUF) : text.size());
  }

  int fd() const { return own_ >= 0 ? own_ : fd_; }

  const Kind kind_;
  const int own_, fd_;
  spdlog::details::thread_pool* pool_ = nullptr;
  std::atomic<steady_clock::time_point> end_{steady_clock::time_point::max()};
  std::atomic<std::uint64_t> failed_{0};
  std::atomic<bool> is_flushed_{false};
  std::uint64_t told_ = 0;  ///< Of the lost lines.
  bool is_cut_ = false;     ///< The line before was written in part.
};

LogWriter::LogWriter(int fd, std::unique_ptr<spdlog::formatter> form)
    : sink_(std::make_shared<LogSink>(fd, std::move(form))),
      pool_(std::make_shared<spdlog::details::thread_pool>(kLinesMax, /*threads_n=*/1, begin_thread)) {
  sink_->set_pool(pool_.get());
  logger_ = std::make_shared<spdlog::async_logger>("", sink_, pool_, spdlog::async_overflow_policy::overrun_oldest);
  logger_->set_level(spdlog::get_level());
  spdlog::set_default_logger(logger_);
}

LogWriter::~LogWriter() {
  finish();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(""));  // without sinks
  // The pool's end waits for its thread. A thread in a write to a disk that hangs is left behind.
  if (!sink_->is_flushed()) static_cast<void>(new auto(std::move(pool_)));
}

std::uint64_t LogWriter::lost_count() const { return sink_->failed_count() + pool_->overrun_counter(); }

void LogWriter::finish() {
  const auto end = steady_clock::now() + kEndPatience;
  sink_->finish_by(end);
  logger_->flush();
  while (!sink_->is_flushed() && steady_clock::now() < end + kEndPatience) std::this_thread::sleep_for(1ms);
}

}  // namespace kv
