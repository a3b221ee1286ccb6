#include "base/secret/secret_command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/descriptor.h"

namespace kv {
namespace {

using std::chrono::steady_clock;

/// By then a killed process is gone, unless it hangs in the kernel: that one is not waited for.
constexpr int kKillWaitMs = 1000;

/// /bin/sh with a command, in its own process group that ends with this object.
class Shell {
 public:
  /// `output`: its standard output.
  static Result<Shell> start(const std::string& command, int output) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    // Also closes clients' sockets: not all libraries open theirs with O_CLOEXEC.
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    std::string path = "/bin/sh", option = "-c", text = command;
    std::array<char*, 4> arguments = {path.data(), option.data(), text.data(), nullptr};
    pid_t id = 0;
    const int why = ::posix_spawn(&id, path.c_str(), &files, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (why != 0) return error_code(why, boost::system::system_category());
    Shell shell(id);
    if (shell.ended() < 0) return last_errno();
    return shell;
  }
  Shell(Shell&& other) noexcept : id_(std::exchange(other.id_, 0)), ended_(std::move(other.ended_)) {}
  Shell& operator=(Shell&&) = delete;
  ~Shell() {
    if (id_ == 0) return;
    ::kill(-id_, SIGKILL);
    pollfd ended{.fd = ended_.get(), .events = POLLIN, .revents = 0};
    ::poll(&ended, 1, kKillWaitMs);
    ::waitpid(id_, nullptr, WNOHANG);
  }

  int ended() const { return ended_.get(); }  ///< Readable once the shell has ended.
  /// Only then: its exit status in a shell's form, -1 if unknown.
  int status() {
    int status = 0;
    if (::waitpid(std::exchange(id_, 0), &status, WNOHANG) <= 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  explicit Shell(pid_t id) : id_(id), ended_(static_cast<int>(::syscall(SYS_pidfd_open, id, 0))) {}

  pid_t id_;  ///< 0: it has ended.
  Descriptor ended_;
};

}  // namespace

Result<Secret, Failure> read_secret_command(const std::string& command, std::size_t bytes_max,
                                            std::chrono::milliseconds time_max) {
  const auto end = steady_clock::now() + time_max;
  const auto fail_by_system = [](error_code why) { return Failure(why, "cannot be run: " + why.message()); };
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_by_system(last_errno());
  const Descriptor output(ends[0]);
  Descriptor input(ends[1]);
  if (::fcntl(output.get(), F_SETFL, O_NONBLOCK) != 0) return fail_by_system(last_errno());
  auto shell = Shell::start(command, input.get());
  if (!shell) return fail_by_system(shell.error());
  input = Descriptor();

  std::string bytes(bytes_max + 1, '\0');
  std::size_t count = 0;
  const auto give_up = [&](error_code why, const std::string& what) {
    wipe(bytes);
    return Failure(why, what);
  };
  // Processes that the shell left running may hold the pipe open: the shell's own end counts.
  for (bool has_ended = false, is_open = true; !has_ended;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now());
    std::array<pollfd, 2> events{pollfd{.fd = shell->ended(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = is_open ? output.get() : -1, .events = POLLIN, .revents = 0}};
    const int ready =
        ::poll(events.data(), events.size(), static_cast<int>(std::max(left.count(), decltype(left.count()){0})));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return give_up(last_errno(), "cannot be waited for: " + last_errno().message());
    if (ready == 0)
      return give_up(asio::error::timed_out, "has not ended after " + std::to_string(time_max.count()) + " ms");
    has_ended = events[0].revents != 0;
    while (is_open) {
      const ssize_t got = ::read(output.get(), bytes.data() + count, bytes.size() - count);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) break;
      is_open = got > 0;
      count += static_cast<std::size_t>(got);
      if (count > bytes_max)
        return give_up(Errc::kBadRequest, "prints more than " + std::to_string(bytes_max) + " bytes");
    }
  }
  if (const int status = shell->status(); status != 0)
    return give_up(Errc::kBadRequest, "ends with status " + (status < 0 ? "unknown" : std::to_string(status)));
  const std::string_view text(bytes.data(), count);
  Secret secret(text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
  wipe(bytes);
  return secret;
}

}  // namespace kv
