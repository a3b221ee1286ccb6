#include "store/node/disk/files/operator_keys.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/secret/secret_command.h"
#include "base/secret/secret_file.h"
#include "base/text/hex.h"
#include "base/text/printable.h"
#include "index/block_hash.h"
#include "store/node/disk/files/sealing.h"

namespace kv {
namespace {

constexpr std::size_t kKeyTextBytesMax = 16 << 10;
/// A distant KMS answers within seconds; a node that starts, or is asked to end, waits for this.
constexpr std::chrono::seconds kCommandTimeMax{30};
constexpr std::string_view kBlank = " \t\r";

/// Empty unless exactly 64 hexadecimal digits.
Secret key_of_digits(std::string_view digits) {
  std::array<unsigned char, kSealKeyBytes> bytes{};
  const bool is_good = from_hex(digits, std::as_writable_bytes(std::span(bytes)));
  Secret key(std::string_view(reinterpret_cast<const char*>(bytes.data()), is_good ? bytes.size() : 0));
  ::explicit_bzero(bytes.data(), bytes.size());
  return key;
}

/// From a hash, so that the key keeps its id on any line.
std::string id_of_key(const Secret& key) {
  std::string text = "kvstore spill key ";
  text.reserve(text.size() + key.text().size());
  text += key.text();
  const BlockHash hash = sha256(std::as_bytes(std::span(text)));
  wipe(text);
  return "k-" + to_hex(hash.bytes).substr(0, 16);
}

Result<std::vector<OperatorKeys::Key>, Failure> read_keys(const OperatorKeySource& source) {
  const std::string option = source.option();
  const auto text = source.command.empty() ? read_secret_file(source.file, kKeyTextBytesMax)
                                           : read_secret_command(source.command, kKeyTextBytesMax, kCommandTimeMax);
  if (!text) return Failure(text.error().code, option + ": " + text.error().text);
  auto keys = OperatorKeys::parse(text->text());
  if (!keys) return Failure(keys.error().code, option + ": " + source.place() + ": " + keys.error().text);
  return keys;
}

}  // namespace

std::string OperatorKeySource::place() const {
  return command.empty() ? printable(file) : "the output of disk-key-command";
}

bool OperatorKeys::is_id(std::string_view text) {
  return !text.empty() && text.size() <= kIdBytesMax && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

Result<std::vector<OperatorKeys::Key>, Failure> OperatorKeys::parse(std::string_view text) {
  std::vector<Key> keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto fail = [&](const std::string& what) {
      return Failure(Errc::kBadRequest, fmt::format("line {}: {}", number, what));
    };
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    line = line.substr(std::min(line.size(), line.find_first_not_of(kBlank)));
    line = line.substr(0, line.find_last_not_of(kBlank) + 1);
    if (line.empty()) continue;
    const std::size_t space = line.find_first_of(kBlank);
    const bool has_id = space != std::string_view::npos;
    std::string_view digits = has_id ? line.substr(space) : line;
    digits = digits.substr(std::min(digits.size(), digits.find_first_not_of(kBlank)));
    if (has_id && !is_id(line.substr(0, space)))
      return fail(fmt::format("the id may have 1 to {} letters, digits, '.', '_' and '-'", kIdBytesMax));
    Key key{.id = "", .bytes = key_of_digits(digits)};
    if (key.bytes.empty())
      return fail(fmt::format(
          "a key of {} characters, allowed are 64 hexadecimal digits (openssl rand -hex 32), or an id before them",
          digits.size()));
    key.id = has_id ? std::string(line.substr(0, space)) : id_of_key(key.bytes);
    if (std::ranges::find(keys, key.id, &Key::id) != keys.end())
      return fail("the id '" + key.id + "' stands there twice");
    keys.push_back(std::move(key));
    if (keys.size() > kCountMax) return fail(fmt::format("more than {} keys", kCountMax));
  }
  if (keys.empty()) return Failure(Errc::kBadRequest, "there is no key in it (openssl rand -hex 32 makes one)");
  return keys;
}

Result<std::shared_ptr<OperatorKeys>, Failure> OperatorKeys::open(const OperatorKeySource& source) {
  auto keys = read_keys(source);
  if (!keys) return keys.error();
  return std::shared_ptr<OperatorKeys>(new OperatorKeys(source, std::move(*keys)));
}

std::vector<OperatorKeys::Key> OperatorKeys::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

std::string OperatorKeys::current_id() const {
  const std::lock_guard lock(mutex_);
  return keys_.front().id;
}

bool OperatorKeys::is_exposed() const { return !source_.file.empty() && is_secret_file_exposed(source_.file); }

void OperatorKeys::add(const std::shared_ptr<KeyHolder>& holder) {
  const std::lock_guard lock(mutex_);
  std::erase_if(holders_, [](const auto& each) { return each.expired(); });
  holders_.push_back(holder);
}

Failure OperatorKeys::reload() {
  last_failed_ = true;
  auto keys = read_keys(source_);
  if (!keys) return keys.error();
  std::vector<std::shared_ptr<KeyHolder>> holders;
  {
    const std::lock_guard lock(mutex_);
    keys_ = std::move(*keys);
    for (const auto& each : holders_) {
      if (auto holder = each.lock()) holders.push_back(std::move(holder));
    }
  }
  ++reloads_;
  // All holders, even if one fails: it keeps its keys, wrapped by an older key.
  Failure first;
  for (const auto& holder : holders) {
    if (const error_code error = holder->rewrap(); error && !first.code)
      first = Failure(error, fmt::format("{}: keys on disk are still wrapped by an older key: {}", source_.option(),
                                         error.message()));
  }
  last_failed_ = static_cast<bool>(first.code);
  return first;
}

}  // namespace kv
