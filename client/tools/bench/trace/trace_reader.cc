#include "client/tools/bench/trace/trace_reader.h"

#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace kv {
namespace {

constexpr std::size_t kLineBytesMax = 64u << 20;  ///< Bounds memory for a file that is not a trace.

struct CloseGzip {
  void operator()(gzFile_s* file) const noexcept { gzclose(file); }
};
using GzipFile = std::unique_ptr<gzFile_s, CloseGzip>;

/// The next line without its newline. False at the end of the file. gzgets() does not report its length, and a NUL byte
/// would hide the rest of its line and the newline: the position in the file reveals such bytes.
bool read_line(gzFile_s* file, std::string* line, const std::string& path) {
  line->clear();
  z_off_t begin = gztell(file);
  std::array<char, 1 << 16> part;
  while (gzgets(file, part.data(), static_cast<int>(part.size())) != nullptr) {
    const std::size_t bytes = std::strlen(part.data());
    const z_off_t end = gztell(file);
    if (static_cast<z_off_t>(bytes) != end - begin)
      throw std::runtime_error(path + ": holds a NUL byte: it is no text");
    begin = end;
    line->append(part.data(), bytes);
    if (line->size() > kLineBytesMax) throw std::runtime_error(path + ": a line is longer than 64 MiB");
    if (line->ends_with('\n')) {
      line->pop_back();
      return true;
    }
  }
  int error = Z_OK;
  const char* message = gzerror(file, &error);
  // A truncated gzip file differs from a complete one only here: the hit rates of half a trace would look plausible.
  if (error != Z_OK && error != Z_STREAM_END) throw std::runtime_error(path + ": " + message);
  return !line->empty();
}

TraceRequest parse_request(const nlohmann::json& object) {
  TraceRequest request;
  object.at("timestamp").get_to(request.timestamp_ms);
  object.at("input_length").get_to(request.input_length);
  object.at("output_length").get_to(request.output_length);
  object.at("hash_ids").get_to(request.hash_ids);
  return request;
}

}  // namespace

std::vector<TraceRequest> read_trace(const std::string& path, std::size_t request_count_max) {
  errno = 0;                                         // gzopen leaves it alone when out of memory
  const GzipFile file(gzopen(path.c_str(), "rbe"));  // plain files too; e: O_CLOEXEC
  if (!file) throw std::runtime_error(path + ": " + (errno != 0 ? std::strerror(errno) : "out of memory"));
  std::vector<TraceRequest> requests;
  std::string line;
  for (std::size_t number = 1; read_line(file.get(), &line, path); ++number) {
    if (request_count_max > 0 && requests.size() == request_count_max) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      requests.push_back(parse_request(nlohmann::json::parse(line)));
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(path + ", line " + std::to_string(number) + ": " + error.what());
    }
  }
  return requests;
}

}  // namespace kv
