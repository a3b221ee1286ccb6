#include "client/tools/bench/loads/generate.h"

#include <unistd.h>
#include <zlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "client/tools/bench/bench.h"
#include "client/tools/bench/loads/load.h"
#include "client/tools/progress_line.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

constexpr std::uint64_t kRequestsMax = 10'000'000;

struct GenerateOptions {
  std::string kind, out = "-";
  std::uint64_t request_count = 20'000;
  std::uint64_t seed = 1, rate = 1;
};

/// Standard output, a file, or a compressed file. Throws std::runtime_error.
class TraceWriter {
 public:
  explicit TraceWriter(std::string path) : path_(std::move(path)) {
    errno = 0;
    // "T": uncompressed.
    file_ =
        path_ == "-" ? gzdopen(STDOUT_FILENO, "wbT") : gzopen(path_.c_str(), path_.ends_with(".gz") ? "wbe9" : "wbeT");
    if (file_ == nullptr) fail(errno != 0 ? std::strerror(errno) : "out of memory");
  }
  ~TraceWriter() {
    if (file_ != nullptr) gzclose(file_);
  }
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void write(const std::string& line) {
    if (gzwrite(file_, line.data(), static_cast<unsigned>(line.size())) != static_cast<int>(line.size()))
      fail(std::strerror(errno));
  }
  void close() {
    if (gzclose(std::exchange(file_, nullptr)) != Z_OK) fail(std::strerror(errno));
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw std::runtime_error(path_ + ": " + why); }

  std::string path_;
  gzFile_s* file_ = nullptr;
};

void run_generate(const GenerateOptions& options) {
  const auto kind = std::ranges::find(kLoadNames, options.kind);
  Load load(static_cast<LoadKind>(kind - std::begin(kLoadNames)), options.request_count, options.seed, options.rate);
  TraceWriter writer(options.out);
  ProgressLine progress(options.out != "-");
  std::uint64_t made = 0;
  while (const auto request = load.next()) {
    writer.write(trace_line(*request));
    ++made;
    progress.tell([&] { return format_count(made) + " of " + format_count(options.request_count) + " requests"; });
  }
  writer.close();
}

}  // namespace

std::string trace_line(const TraceRequest& request) {
  std::string line = "{\"timestamp\": " + std::to_string(request.timestamp_ms) +
                     ", \"input_length\": " + std::to_string(request.input_length) +
                     ", \"output_length\": " + std::to_string(request.output_length) + ", \"hash_ids\": [";
  for (std::size_t i = 0; i < request.hash_ids.size(); ++i) {
    if (i > 0) line += ", ";
    line += std::to_string(request.hash_ids[i]);
  }
  return line += "]}\n";
}

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command =
      app.add_subcommand("generate", "Writes a trace of made-up requests, for replay and kvstore-policies");
  std::vector<std::string> kinds(std::begin(kLoadNames), std::end(kLoadNames));
  command->add_option("--kind", options->kind, "What kind of load, see below")->required()->check(CLI::IsMember(kinds));
  command->add_option("--requests", options->request_count, "How many")
      ->check(CLI::Range(std::uint64_t{1}, kRequestsMax))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Another seed makes another load of the kind")->capture_default_str();
  command->add_option("--rate", options->rate, "Times as many sessions a second: a load for a larger cache")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000}))
      ->capture_default_str();
  command->add_option("--out", options->out, "Where to; -: standard output. A name that ends in .gz: compressed")
      ->type_name("FILE")
      ->capture_default_str();
  command->footer(
      "The lines are as those that replay reads: timestamp (ms), input_length, output_length and hash_ids, one id for\n"
      "each 512 tokens. Equal kinds, counts and seeds give equal traces, on every machine.\n\n"
      "  chat       turns minutes apart behind one of 8 system prompts; half of the chats end after the first\n"
      "  agent      loops of 10 to 60 calls, seconds apart, behind one of 5 long system prompts\n"
      "  documents  questions about documents of 5 k to 60 k tokens, by readers who come soon after one another\n"
      "  one-shot   calls that do not come back, behind one of 30 system prompts\n"
      "  chat-one-shot, agent-chat, documents-one-shot: two of these at once; mixed: all four\n"
      "  phases     chats, agents, documents, chats with one-shot calls: a quarter of the requests each\n\n"
      "Examples:\n"
      "  kvstore-bench generate --kind agent --seed 7 --out agent.jsonl.gz\n"
      "  kvstore-policies --trace agent.jsonl.gz --capacity 3000,10000\n");
  command->callback([options] { run_generate(*options); });
}

}  // namespace kv
