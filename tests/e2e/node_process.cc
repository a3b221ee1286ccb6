#include "tests/e2e/node_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace kv::e2e {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Starts a program with its output in files.
pid_t start_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                    const std::string& out, const std::string& err) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // All memory before the fork: other threads of the test may hold the allocator's lock at that moment.
  std::vector<char*> settings;
  for (const std::string& setting : environment) settings.push_back(const_cast<char*>(setting.c_str()));
  for (char** inherited = environ; *inherited != nullptr; ++inherited) settings.push_back(*inherited);
  settings.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves nothing behind
  const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int err_fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int null_fd = ::open("/dev/null", O_RDONLY);
  ::dup2(null_fd, 0);
  ::dup2(out_fd, 1);
  ::dup2(err_fd, 2);
  ::execve(argv[0], argv.data(), settings.data());
  ::_exit(127);
}

/// Whether the thread of this name has nothing to do, or is not there.
bool sleeps(pid_t pid, const std::string& name) try {
  std::error_code gone;
  for (const auto& each : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    const std::string status = read_file(each.path() / "stat");  // "12 (name) S ..."
    if (const std::size_t at = status.find(" (" + name + ") "); at != std::string::npos)
      return std::string("STtZX").find(status[at + name.size() + 4]) != std::string::npos;
  }
  return true;
} catch (const std::exception&) {
  return false;  // a thread has ended meanwhile
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// The word after `key` in `text`, up to a space or the line's end.
std::vector<std::string> words_after(const std::string& text, const std::string& key) {
  std::vector<std::string> words;
  for (std::size_t at = 0; (at = text.find(key, at)) != std::string::npos;) {
    at += key.size();
    words.push_back(text.substr(at, text.find_first_of(" \n\"", at) - at));
  }
  return words;
}

}  // namespace

std::string node_program() { return KV_NODE_PROGRAM; }
std::string ctl_program() { return KV_CTL_PROGRAM; }
std::string bench_program() { return KV_BENCH_PROGRAM; }
std::string policies_program() { return KV_POLICIES_PROGRAM; }

pid_t start_child(const std::vector<std::string>& arguments, const std::string& log,
                  const std::vector<std::string>& environment) {
  return start_program(arguments, environment, log, log);
}

int wait_for_child(pid_t pid) { return wait_for(pid); }

TempDir::TempDir() {
  std::string path = std::filesystem::temp_directory_path() / "kvstore-e2e-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = path;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Finished run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  const TempDir directory;
  const std::string out = directory.path() + "/out", err = directory.path() + "/err";
  Finished finished;
  finished.status = wait_for(start_program(arguments, environment, out, err));
  finished.out = read_file(out);
  finished.err = read_file(err);
  return finished;
}

bool eventually(const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::vector<std::string> free_ports(std::size_t count) {
  using boost::asio::ip::tcp;
  boost::asio::io_context context;
  std::random_device random;
  std::vector<tcp::acceptor> acceptors;
  std::vector<std::string> ports;
  while (ports.size() < count) {
    const auto port = static_cast<unsigned short>(20'000 + random() % 12'000);
    tcp::acceptor& acceptor = acceptors.emplace_back(context, tcp::v4());
    boost::system::error_code taken;
    if (!acceptor.bind({boost::asio::ip::address_v4::loopback(), port}, taken)) ports.push_back(std::to_string(port));
  }
  return ports;
}

NodeProcess::NodeProcess(const std::vector<std::string>& options, const std::string& socket,
                         const std::vector<std::string>& environment) {
  const std::string path = socket.empty() ? directory_.path() + "/socket" : socket;
  std::vector<std::string> arguments = {node_program(), "--listen", "tcp://127.0.0.1:0", "--listen", "unix://" + path};
  if (std::ranges::none_of(options, [](const std::string& each) { return each.starts_with("--admin"); }))
    arguments.insert(arguments.end(), {"--admin", "127.0.0.1:0"});
  arguments.insert(arguments.end(), options.begin(), options.end());
  pid_ = start_program(arguments, environment, directory_.path() + "/log", directory_.path() + "/log");
  bool has_ended = false;
  const bool is_up = eventually([&] {
    has_ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    return has_ended || log().find("ready listen=") != std::string::npos;
  });
  if (has_ended) pid_ = -1;
  if (has_ended || !is_up) throw std::runtime_error("kvstore-node did not come up:\n" + log());
  const std::string text = log();
  for (const std::string& endpoint : words_after(text, "listen=")) {
    if (endpoint.starts_with("tcp://") && tcp_.empty()) tcp_ = endpoint;
    if (endpoint.starts_with("tls://")) tls_ = endpoint;
  }
  unix_ = "unix://" + path;
  admin_ = words_after(text, "admin=").at(0);
}

NodeProcess::~NodeProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

void NodeProcess::signal(int number) const {
  ::kill(pid_, number);
  if (number != SIGSTOP) return;
  siginfo_t stopped = {};
  ::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}

int NodeProcess::wait() {
  const int status = wait_for(pid_);
  pid_ = -1;
  return status;
}

std::string NodeProcess::log() const {
  if (pid_ > 0) eventually([this] { return sleeps(pid_, "log"); });
  return read_file(directory_.path() + "/log");
}

bool NodeProcess::logs(const std::string& text) const {
  return eventually([&] { return log().find(text) != std::string::npos; });
}

Page http_get(const std::string& address, const std::string& path) {
  const std::size_t colon = address.rfind(':');
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(std::chrono::seconds(30));
  stream.connect(address.substr(0, colon), address.substr(colon + 1));
  stream << "GET " << path << " HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n" << std::flush;
  const std::string answer{std::istreambuf_iterator<char>(stream), {}};
  Page page;
  if (answer.size() > 12) page.status = std::atoi(answer.c_str() + 9);
  if (const std::size_t body = answer.find("\r\n\r\n"); body != std::string::npos) page.body = answer.substr(body + 4);
  return page;
}

Page NodeProcess::http_get(const std::string& path) const { return e2e::http_get(admin_, path); }

double NodeProcess::metric(const std::string& name) const {
  std::istringstream page(http_get("/metrics").body);
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with(name + " ")) return std::stod(line.substr(name.size() + 1));
  }
  return -1;
}

}  // namespace kv::e2e
