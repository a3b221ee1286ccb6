#include "store/node/disk/files/data_keys.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/assert.h"
#include "store/node/disk/files/disk_directory.h"
#include "store/node/disk/files/sealing.h"

namespace kv {
namespace {

static_assert(sizeof(WrappedKey::sealed) == kSealKeyBytes + kSealTagBytes);
static_assert(kSealedOverheadBytes == sizeof(std::uint64_t) + kSealTagBytes);

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string associated_of(const WrappedKey& key) { return encode_wrapped_key(key).substr(0, kWrapAssociatedBytes); }

void append_number(std::string& text, std::uint64_t number) {
  for (int i = 0; i < 8; ++i) text += static_cast<char>(number >> (8 * i) & 0xff);
}

std::string associated_of_block(const DataKeys::Key& data_key, DiskKey key, std::size_t text_bytes) {
  std::string text;
  text.reserve(40);
  text.append(reinterpret_cast<const char*>(data_key.space.bytes.data()), data_key.space.bytes.size());
  append_number(text, data_key.number);
  append_number(text, static_cast<std::uint64_t>(key));
  append_number(text, text_bytes);
  return text;
}

SealNonce nonce_of(DiskKey key) {
  SealNonce nonce{};
  const DiskKeyText text = encode_key(key);
  static_assert(sizeof text <= sizeof nonce);
  std::memcpy(nonce.data(), text.data(), text.size());
  return nonce;
}

std::string associated_of_record(const NamespaceId& id) {
  return "n" + std::string(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
}

/// Overwrites the content of an open file, even if its name points elsewhere by now.
void overwrite(const File& file) {
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0) return;
  const std::string zeros(static_cast<std::size_t>(status.st_size), '\0');
  if (::pwrite(file.number(), zeros.data(), zeros.size(), 0) < 0 || ::fdatasync(file.number()) != 0)
    spdlog::warn("disk: an earlier file of wrapped keys could not be overwritten");
}

}  // namespace

Result<std::shared_ptr<DataKeys>, Failure> DataKeys::open(const std::filesystem::path& directory,
                                                          std::shared_ptr<OperatorKeys> keys, std::size_t count_max) {
  const std::filesystem::path file = directory / "KEYS";
  std::ifstream in(file, std::ios::binary);
  std::vector<WrappedKey> entries;
  std::size_t entry_count = 0, damaged = 0;
  // Entries behind a damaged header are still used: each has a checksum of its own.
  in.ignore(static_cast<std::streamsize>(kKeysHeader.size()));
  for (std::array<char, kWrappedKeyBytes> text; in.read(text.data(), text.size());) {
    if (++entry_count > count_max + 1) {  // one extra: the directory's own key, if lost, is made again
      return Failure(Errc::kMismatch, fmt::format("{}: is longer than the {} keys that a node writes at most. Nothing "
                                                  "was changed. Put a copy of it back, or empty the directory",
                                                  file.string(), count_max));
    }
    if (auto entry = decode_wrapped_key(std::string_view(text.data(), text.size())))
      entries.push_back(std::move(*entry));
    else
      ++damaged;
  }
  if (entries.empty()) {
    return Failure(Errc::kMismatch,
                   file.string() +
                       ": is missing or damaged, and without it the blocks of this directory cannot be "
                       "read. Nothing was changed. Put a copy of it back, or empty the directory");
  }
  const auto named = std::ranges::min_element(entries, {}, &WrappedKey::seal_epoch);
  std::shared_ptr<DataKeys> made(new DataKeys(directory, keys, named->seal_epoch, count_max));
  const std::vector<OperatorKeys::Key> wrapping = keys->keys();
  std::map<std::string, std::size_t> opened, failed;
  for (const WrappedKey& entry : entries) {
    const auto by = std::ranges::find(wrapping, entry.wrapped_by, &OperatorKeys::Key::id);
    if (by == wrapping.end()) {
      return Failure(Errc::kMismatch,
                     fmt::format("{}: its keys are wrapped by the key '{}', which is not in {}. Nothing was changed. "
                                 "Add that key to the file, behind the first line",
                                 directory.string(), entry.wrapped_by, keys->source().place()));
    }
    std::array<std::byte, kSealKeyBytes> bytes;
    const bool is_good = unseal(by->bytes, entry.nonce, associated_of(entry), entry.sealed, bytes);
    ++(is_good ? opened : failed)[entry.wrapped_by];
    if (!is_good) continue;
    auto key = std::make_shared<const Key>(
        Key{entry.number, entry.space, entry.first_key,
            Secret(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()))});
    ::explicit_bzero(bytes.data(), bytes.size());
    if (entry.first_key == DiskKey{}) made->own_ = key;
    made->by_number_[entry.number] = std::move(key);
    if (made->by_number_.size() == 1) made->wrapped_by_ = entry.wrapped_by;
    if (made->wrapped_by_ != entry.wrapped_by) made->wrapped_by_.clear();
  }
  for (const auto& [id, count] : failed) {
    damaged += count;
    if (opened.contains(id)) continue;
    return Failure(
        Errc::kMismatch,
        fmt::format("{}: the key '{}' in {} is not the one of this name that wrapped its keys. Nothing was changed",
                    directory.string(), id, keys->source().place()));
  }
  if (damaged > 0)
    spdlog::warn("disk: {}: {} damaged entries; blocks that were sealed with their keys are lost", file.string(),
                 damaged);
  KV_ASSERT(!made->by_number_.empty());
  // Without it namespace records are unreadable; new records get a new key.
  if (!made->own_) {
    made->own_ = made->draw({}, DiskKey{});
    made->by_number_[made->own_->number] = made->own_;
  }
  keys->add(made);
  return made;
}

Result<std::shared_ptr<DataKeys>, Failure> DataKeys::make(const std::filesystem::path& directory,
                                                          std::shared_ptr<OperatorKeys> keys, std::uint32_t seal_epoch,
                                                          std::size_t count_max) {
  std::shared_ptr<DataKeys> made(new DataKeys(directory, keys, seal_epoch, count_max));
  made->own_ = made->draw({}, DiskKey{});
  made->by_number_[made->own_->number] = made->own_;
  if (const error_code error = made->rewrite({made->own_}))
    return Failure(error, made->file_.string() + ": cannot be written: " + error.message());
  keys->add(made);
  return made;
}

/// Draws an unused number, so that a value sealed with a destroyed key never matches the new one.
std::shared_ptr<const DataKeys::Key> DataKeys::draw(const NamespaceId& space, DiskKey first_key) const {
  std::uint64_t number = random_word();
  while (by_number_.contains(number)) number = random_word();
  return std::make_shared<const Key>(Key{number, space, first_key, random_key()});
}

/// The nonce is random: an operator's key wraps one entry per namespace and start.
WrappedKey DataKeys::wrap(const Key& key) const {
  const OperatorKeys::Key by = keys_->keys().front();
  WrappedKey entry{.number = key.number,
                   .space = key.space,
                   .first_key = key.first_key,
                   .seal_epoch = seal_epoch_,
                   .wrapped_by = by.id,
                   .nonce = random_nonce()};
  const std::span<const std::byte> part = bytes_of(key.bytes.text());
  seal(by.bytes, entry.nonce, associated_of(entry), {&part, 1}, entry.sealed);
  return entry;
}

Result<std::shared_ptr<const DataKeys::Key>> DataKeys::for_writing(const NamespaceId& space, DiskKey block) {
  const std::lock_guard lock(changing_);
  if (const auto found = for_writing_.find(space); found != for_writing_.end()) return found->second;
  KV_ASSERT(block != DiskKey{});
  if (by_number_.size() >= count_max_) {  // invariant 5
    spdlog::error("disk: {}: has {} keys, and may have no more", file_.string(), by_number_.size());
    return error_code(ENOSPC, boost::system::generic_category());
  }
  auto key = draw(space, block);
  error_code error;
  if (is_whole_) {
    error = append(*key);
  } else {
    std::vector<std::shared_ptr<const Key>> all = {key};
    for (const auto& [number, each] : by_number_) all.push_back(each);
    error = rewrite(all);
  }
  if (error) {
    spdlog::error("disk: {}: a key cannot be kept: {}", file_.string(), error.message());
    return error;
  }
  for_writing_[space] = key;
  const std::lock_guard adding(mutex_);
  by_number_[key->number] = key;
  return key;
}

std::shared_ptr<const DataKeys::Key> DataKeys::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

std::set<std::pair<NamespaceId, std::uint32_t>> DataKeys::known() const {
  const std::lock_guard lock(mutex_);
  std::set<std::pair<NamespaceId, std::uint32_t>> all;
  for (const auto& [number, key] : by_number_) all.emplace(key->space, epoch_of(key->first_key));
  return all;
}

void DataKeys::retire(const NamespaceId& space) {
  const std::lock_guard lock(changing_);
  for_writing_.erase(space);
}

/// The file first: a key that is only gone from memory would return with the next start.
template <class Gone>
error_code DataKeys::destroy_if(Gone is_gone) {
  const std::lock_guard lock(changing_);
  std::vector<std::shared_ptr<const Key>> left;
  for (const auto& [number, key] : by_number_) {
    if (key == own_ || !is_gone(*key)) left.push_back(key);
  }
  if (left.size() == by_number_.size()) return {};
  if (const error_code error = rewrite(left)) {
    spdlog::error("disk: {}: keys cannot be destroyed: {}", file_.string(), error.message());
    return error;
  }
  std::erase_if(for_writing_, [&](const auto& each) { return is_gone(*each.second); });
  const std::lock_guard removing(mutex_);
  std::erase_if(by_number_, [&](const auto& each) { return each.second != own_ && is_gone(*each.second); });
  KV_ASSERT(by_number_.size() == left.size());
  return {};
}

error_code DataKeys::destroy(std::span<const std::pair<NamespaceId, DiskKey>> gone) {
  return destroy_if([&](const Key& key) {
    return std::ranges::any_of(
        gone, [&](const auto& each) { return each.first == key.space && key.first_key < each.second; });
  });
}

error_code DataKeys::destroy_before(DiskKey end) {
  return destroy_if([&](const Key& key) { return epoch_of(key.first_key) < epoch_of(end); });
}

error_code DataKeys::rewrap() {
  const std::lock_guard lock(changing_);
  if (wrapped_by_ == keys_->current_id()) return {};
  std::vector<std::shared_ptr<const Key>> all;
  for (const auto& [number, key] : by_number_) all.push_back(key);
  const error_code error = rewrite(all);
  if (!error) spdlog::info("disk: {}: {} keys are wrapped by '{}' now", file_.string(), all.size(), wrapped_by_);
  return error;
}

/// After an error the file's content is unknown. The next call rewrites all of it.
error_code DataKeys::append(const Key& key) {
  KV_ASSERT(append_to_.is_open());
  const WrappedKey entry = wrap(key);
  const std::string text = encode_wrapped_key(entry);
  const ssize_t written = ::write(append_to_.number(), text.data(), text.size());
  error_code error;
  if (written < 0)
    error = last_errno();
  else if (static_cast<std::size_t>(written) < text.size())
    error = {ENOSPC, boost::system::generic_category()};
  else if (::fdatasync(append_to_.number()) != 0)
    error = last_errno();
  is_whole_ = !error;
  if (entry.wrapped_by != wrapped_by_) wrapped_by_.clear();
  return error;
}

/// Replaces the whole file, so a crash leaves either the old keys or the new ones, and then overwrites the old file.
error_code DataKeys::rewrite(const std::vector<std::shared_ptr<const Key>>& left) {
  is_whole_ = false;
  append_to_.close();
  std::string text(kKeysHeader);
  text.reserve(text.size() + left.size() * kWrappedKeyBytes);
  std::string by;
  for (const auto& key : left) {
    const WrappedKey entry = wrap(*key);
    if (by.empty()) by = entry.wrapped_by;
    text += encode_wrapped_key(entry);
  }
  const File before(::open(file_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (const error_code error = replace_file(file_, text)) return error;
  overwrite(before);
  wrapped_by_ = by;
  append_to_ = File(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
  is_whole_ = append_to_.is_open();
  return {};
}

/// Few are ever written, so a random nonce suffices.
std::string DataKeys::seal_record(const NamespaceId& id, std::string_view record) const {
  const SealNonce nonce = random_nonce();
  std::string value(1, kSealedRecordTag);
  value.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  const std::size_t begin = value.size();
  value.resize(begin + record.size() + kSealTagBytes);
  const std::span<const std::byte> part = bytes_of(record);
  seal(own_->bytes, nonce, associated_of_record(id), {&part, 1},
       std::as_writable_bytes(std::span(value)).subspan(begin));
  return value;
}

std::optional<std::string> DataKeys::open_record(const NamespaceId& id, std::string_view value) const {
  if (value.empty() || value[0] != kSealedRecordTag) return std::string(value);
  value.remove_prefix(1);
  SealNonce nonce;
  if (value.size() < nonce.size() + kSealTagBytes) return std::nullopt;
  std::memcpy(nonce.data(), value.data(), nonce.size());
  value.remove_prefix(nonce.size());
  std::string record(value.size() - kSealTagBytes, '\0');
  if (!unseal(own_->bytes, nonce, associated_of_record(id), bytes_of(value), std::as_writable_bytes(std::span(record))))
    return std::nullopt;
  return record;
}

void seal_block(const DataKeys::Key& data_key, DiskKey key, std::string_view checksums,
                std::span<const std::byte> bytes, std::string& value) {
  const std::size_t text_bytes = checksums.size() + bytes.size();
  value.resize(text_bytes + kSealedOverheadBytes);  // keeps its memory from block to block
  std::string number;
  append_number(number, data_key.number);
  std::memcpy(value.data(), number.data(), number.size());
  const std::array<std::span<const std::byte>, 2> parts = {bytes_of(checksums), bytes};
  seal(data_key.bytes, nonce_of(key), associated_of_block(data_key, key, text_bytes), parts,
       std::as_writable_bytes(std::span(value)).subspan(number.size()));
}

Result<OpenedValue> open_block(const DataKeys& keys, DiskKey key, std::string_view value) {
  if (value.size() <= kSealedOverheadBytes) return make_error_code(Errc::kCorruptBlock);
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i)
    number |= std::uint64_t{static_cast<unsigned char>(value[i])} << (8 * i);
  const auto data_key = keys.find(number);
  if (!data_key) return make_error_code(Errc::kNotFound);
  value.remove_prefix(sizeof number);
  OpenedValue opened{.size = value.size() - kSealTagBytes};
  opened.text = std::make_unique_for_overwrite<std::byte[]>(opened.size);
  if (!unseal(data_key->bytes, nonce_of(key), associated_of_block(*data_key, key, opened.size), bytes_of(value),
              {opened.text.get(), opened.size}))
    return make_error_code(Errc::kCorruptBlock);
  return opened;
}

}  // namespace kv
