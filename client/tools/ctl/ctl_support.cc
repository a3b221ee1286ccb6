// kvstorectl support-bundle: all data for a remote diagnosis, as one file. Text, so that its sender can read it first.
//
// Free of secrets by construction: reads only the files named here, never a key or a password file; of the
// configuration only lines that set an option, without comments; and no namespace records, since they contain salts.
// The other commands run as programs: a hanging one costs its own time only.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"

namespace kv {
namespace {

constexpr std::size_t kPartBytesMax = 4 << 20;  // of one part; a log of a bad hour is long
constexpr auto kProgramTime = 20s;

struct SupportOptions {
  SupportOptions() { node.deadline = 2s; }
  ConnectionOptions node;
  std::string admin = "127.0.0.1:7401";
  std::string config = "/etc/kvstore/kvstore-node.toml";
  std::string out;
};

struct Ended {
  int status = -1;  ///< -1: it was not found, or killed.
  std::string text;
};

/// Output and errors of a program, up to a size and a time. Without a shell and its quoting.
Ended run(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {-1, std::strerror(errno)};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
    ::dup2(ends[1], 1);
    ::dup2(ends[1], 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  Ended ended;
  const TimePoint end = std::chrono::steady_clock::now() + kProgramTime;
  std::array<char, 65536> bytes;
  bool is_complete = child < 0;
  while (!is_complete && ended.text.size() < kPartBytesMax) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd readable{ends[0], POLLIN, 0};
    if (left.count() <= 0 || ::poll(&readable, 1, static_cast<int>(left.count())) <= 0) break;
    const ssize_t got = ::read(ends[0], bytes.data(), bytes.size());
    is_complete = got <= 0;
    if (got > 0) ended.text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  if (child < 0) return ended;
  if (!is_complete) {
    ::kill(child, SIGKILL);
    ended.text += "\n[cut here]\n";
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (is_complete && WIFEXITED(status)) ended.status = WEXITSTATUS(status);
  return ended;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return file ? text.str().substr(0, kPartBytesMax) : std::string("cannot be read: ") + std::strerror(errno);
}

/// A command may contain a password; the other options only name files with secrets.
bool is_secret(std::string_view line) {
  const std::string_view name = line.substr(0, line.find_first_of(" \t="));
  return name.ends_with("-command") || name.ends_with("_command") || name.ends_with("_COMMAND");
}

/// Lines that set an option, without comments, which may contain anything.
nlohmann::json config_lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::string("cannot be read: ") + std::strerror(errno);
  nlohmann::json lines = nlohmann::json::array();
  for (std::string line; std::getline(file, line);) {
    bool is_quoted = false;
    std::size_t length = 0;
    while (length < line.size() && (is_quoted || line[length] != '#')) is_quoted ^= line[length++] == '"';
    line.resize(length);
    line.erase(line.find_last_not_of(" \t\r") + 1);
    line.erase(0, line.find_first_not_of(" \t"));
    if (is_secret(line)) line = line.substr(0, line.find('=')) + "= \"(set)\"";
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

/// Runs a command of this program, with the same nodes and certificates.
Ended ask(const SupportOptions& options, std::vector<std::string> words) {
  std::error_code error;
  words.insert(words.begin(), std::filesystem::read_symlink("/proc/self/exe", error).string());
  words.push_back("--json");
  for (const std::string& endpoint : options.node.endpoints) words.insert(words.end(), {"--endpoint", endpoint});
  const TlsConfig& tls = options.node.tls;
  const std::pair<const char*, const std::string&> files[] = {{"--tls-cert", tls.cert_file},
                                                              {"--tls-key", tls.key_file},
                                                              {"--tls-ca", tls.ca_file},
                                                              {"--tls-crl", tls.crl_file},
                                                              {"--tls-server-name", tls.server_name}};
  for (const auto& [flag, file] : files) {
    if (!file.empty()) words.insert(words.end(), {flag, file});
  }
  for (const std::string& name : tls.node_names) words.insert(words.end(), {"--tls-names", name});
  return run(words);
}

/// The command's JSON document, else its text.
nlohmann::json document_of(const Ended& ended) {
  nlohmann::json document = nlohmann::json::parse(ended.text, nullptr, /*allow_exceptions=*/false);
  return {{"exit_status", ended.status},
          {"said", document.is_discarded() ? nlohmann::json(ended.text) : std::move(document)}};
}

nlohmann::json collect(const SupportOptions& options) {
  nlohmann::json bundle = {{"made_at", format_utc(std::chrono::seconds(std::time(nullptr)))}};
  bundle["doctor"] = document_of(ask(options, {"doctor", "--admin", options.admin}));
  bundle["status"] = document_of(ask(options, {"status"}));
  bundle["cluster"] = document_of(ask(options, {"cluster", "status"}));
  bundle["config"] = config_lines(options.config);
  bundle["log"] =
      run({"journalctl", "--unit", "kvstore-node", "--lines", "2000", "--no-pager", "--output", "short-iso"}).text;
  bundle["unit"] = run({"systemctl", "show", "kvstore-node", "--property",
                        "ActiveState,SubState,NRestarts,Result,ExecMainStatus,MemoryCurrent,LimitNOFILE,LimitMEMLOCK"})
                       .text;
  bundle["packages"] = run({"dpkg-query", "--show", "*kvstore*"}).text;
  bundle["kernel"] = run({"uname", "--all"}).text;
  for (const char* const path :
       {"/etc/os-release", "/proc/meminfo", "/proc/loadavg", "/proc/pressure/memory", "/proc/pressure/io",
        "/proc/pressure/cpu", "/sys/kernel/mm/transparent_hugepage/enabled"})
    bundle["machine"][path] = file_text(path);
  bundle["machine"]["cpu"] = run({"lscpu"}).text;
  bundle["machine"]["sockets"] = run({"ss", "--summary"}).text;
  return bundle;
}

void run_support(const SupportOptions& options) {
  const std::string text = json_text(collect(options)) + "\n";
  if (options.out.empty() || options.out == "-") {
    std::cout << text;
    return;
  }
  // Readable by its owner alone; existing files are not overwritten.
  const int file = ::open(options.out.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) throw ToolFailed(options.out + ": " + std::strerror(errno));
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file, text.data() + written, text.size() - written);
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  if (::close(file) != 0 || written < text.size()) throw ToolFailed(options.out + ": " + std::strerror(errno));
  std::cout << options.out << ": read it before you send it; it holds no secrets, but addresses and names\n";
}

}  // namespace

void add_support_command(CLI::App& app) {
  auto options = std::make_shared<SupportOptions>();
  CLI::App* command = app.add_subcommand(
      "support-bundle", "One file with all that helps to find out what is wrong: doctor, counters, configuration, log");
  add_node_options(*command, options->node, /*with_transport=*/false);
  command->add_option("--admin", options->admin, "As for doctor")->capture_default_str()->type_name("HOST:PORT");
  command->add_option("--config", options->config, "The node's configuration")
      ->capture_default_str()
      ->type_name("FILE");
  command->add_option("--out", options->out, "A new file to write to (default: standard output)")->type_name("FILE");
  command->footer(
      "It holds no keys, passwords, certificates, comments of the configuration, namespace records or block names. It\n"
      "does hold addresses, host names, paths, and what the node's log says of clients. Exit status 0 also where a "
      "part\ncould not be had; the bundle says why.\n\n"
      "Example:\n  kvstorectl support-bundle --out kvstore-support.json\n");
  command->callback([options] { run_support(*options); });
}

}  // namespace kv
