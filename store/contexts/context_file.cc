#include "store/contexts/context_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/text/fields.h"
#include "base/text/printable.h"
#include "index/block_hash.h"

namespace kv {
namespace {

constexpr std::string_view kContextMagic = "KVNC";
constexpr std::uint32_t kContextFormat = 1;
constexpr std::size_t kOwnerBytesMax = 1024, kRecordBytesMax = 1 << 20;

std::uint64_t context_checksum(std::string_view bytes) { return hash_prefix(sha256(std::as_bytes(std::span(bytes)))); }

Failure context_failure(const std::string& text) { return {Errc::kBadRequest, "contexts: " + text}; }

std::uint64_t wall_of(TimePoint time, const ClockPair& now) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time - now.steady).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(1, static_cast<std::int64_t>(now.wall_us) + us));
}

TimePoint time_of(std::uint64_t wall_us, const ClockPair& now) {
  constexpr std::uint64_t kAgeUsMax = std::chrono::microseconds(std::chrono::years(100)).count();  // fits a Duration
  const std::uint64_t age = wall_us < now.wall_us ? std::min(now.wall_us - wall_us, kAgeUsMax) : 0;
  return now.steady - std::chrono::microseconds(age);
}

/// The fault in the texts of a context, or empty.
std::string wrong_kept_text(const KeptContext& context) {
  if (context.owner.size() > kOwnerBytesMax)
    return "owner: " + std::to_string(context.owner.size()) + " bytes, at most " + std::to_string(kOwnerBytesMax);
  if (!is_context_name(context.name)) return "name: '" + printable(context.name) + "', " + kContextNameAllowed;
  if (context.tags.size() > kContextTagsMax)
    return "tags: " + std::to_string(context.tags.size()) + ", at most " + std::to_string(kContextTagsMax);
  for (const std::string& tag : context.tags) {
    if (!is_context_tag(tag)) return "tags: '" + printable(tag) + "', " + kContextTagAllowed;
  }
  return "";
}

/// Takes the next context. Returns its fault, or empty.
std::string take_context(FieldTaker& from, const std::vector<std::shared_ptr<const NamespaceRecord>>& records,
                         const ClockPair& now, KeptContext& context) {
  context.owner = from.text<std::uint16_t>();
  context.name = from.text<std::uint8_t>();
  context.tags.resize(from.number<std::uint8_t>());
  for (std::string& tag : context.tags) tag = from.text<std::uint8_t>();
  const auto record = from.number<std::uint32_t>();
  const auto ttl = from.number<std::uint64_t>();
  const auto sliding = from.number<std::uint8_t>();
  context.priority = from.number<std::uint8_t>();
  context.created = time_of(from.number<std::uint64_t>(), now);
  context.begun = time_of(from.number<std::uint64_t>(), now);
  if (const auto used = from.number<std::uint64_t>(); used > 0) context.used = time_of(used, now);
  context.lost_count = from.number<std::uint64_t>();
  context.yielded_count = from.number<std::uint64_t>();
  context.written_tokens = from.number<std::uint64_t>();
  context.read_tokens = from.number<std::uint64_t>();
  context.stored_token_seconds = from.number<double>();
  const auto chain_count = from.number<std::uint16_t>();
  if (from.is_cut) return "cut off";
  if (std::string wrong = wrong_kept_text(context); !wrong.empty()) return wrong;
  if (record >= records.size())
    return "record " + std::to_string(record) + ", there are " + std::to_string(records.size());
  context.record = records[record];
  if (ttl == 0 || ttl > static_cast<std::uint64_t>(kContextTtlMax.count()) || sliding > 1)
    return "time to live: " + std::to_string(ttl) + " ns, sliding " + std::to_string(sliding) +
           "; allowed are 1 ns to ten years, and 0 or 1";
  if (context.priority > kContextPriorityMax)
    return "priority: " + std::to_string(context.priority) + ", allowed are 0 to " +
           std::to_string(kContextPriorityMax);
  context.life = {Duration(static_cast<Duration::rep>(ttl)), sliding == 1};
  if (!std::isfinite(context.stored_token_seconds) || context.stored_token_seconds < 0)
    return "stored token seconds: not a number from 0 on";
  if (chain_count == 0 || chain_count > kContextChainsMax)
    return "chains: " + std::to_string(chain_count) + ", allowed are 1 to " + std::to_string(kContextChainsMax);
  std::size_t hash_count = 0;
  for (std::uint16_t i = 0; i < chain_count; ++i) {
    const auto count = from.number<std::uint32_t>(), written = from.number<std::uint32_t>();
    if (from.is_cut) return "cut off";
    if (count == 0 || written > count)
      return "chain " + std::to_string(i) + ": " + std::to_string(written) + " of " + std::to_string(count) +
             " blocks written";
    context.chains.push_back({count, written});
    hash_count += count;
  }
  // Compared before any allocation for it.
  if (hash_count > from.bytes.size() / sizeof(BlockHash)) return "cut off in the hashes";
  const std::string_view raw = from.raw(hash_count * sizeof(BlockHash));
  std::vector<BlockHash> hashes(hash_count);
  std::memcpy(static_cast<void*>(hashes.data()), raw.data(), raw.size());
  context.hashes = std::move(hashes);
  context.place.prefix_count = from.number<std::uint32_t>();
  const auto has_positions = from.number<std::uint8_t>();
  if (has_positions > 1) return "positions: " + std::to_string(has_positions) + ", allowed are 0 and 1";
  if (has_positions == 1) {
    const std::string_view numbers = from.raw(hash_count * sizeof(std::uint32_t));
    if (from.is_cut) return "cut off in the positions";
    std::vector<std::uint32_t> positions(hash_count);
    std::memcpy(positions.data(), numbers.data(), numbers.size());
    context.place.positions = std::make_shared<const std::vector<std::uint32_t>>(std::move(positions));
  }
  if (from.is_cut) return "cut off in the positions";
  if (!context.place.is_of(hash_count))
    return "positions: they do not place " + std::to_string(hash_count) + " blocks, ascending, among " +
           std::to_string(context.place.prefix_count);
  return "";
}

}  // namespace

std::string write_contexts(const std::vector<KeptContext>& contexts, const ClockPair& now) {
  std::string body;
  append_number(body, now.wall_us);
  std::map<std::string_view, std::uint32_t> numbers;
  std::vector<std::string_view> records;
  for (const KeptContext& context : contexts) {
    const auto number = static_cast<std::uint32_t>(records.size());
    if (numbers.try_emplace(context.record->text(), number).second) records.push_back(context.record->text());
  }
  append_number(body, static_cast<std::uint32_t>(records.size()));
  for (const std::string_view record : records) append_text<std::uint32_t>(body, record);
  append_number(body, static_cast<std::uint32_t>(contexts.size()));
  for (const KeptContext& context : contexts) {
    KV_ASSERT(wrong_kept_text(context).empty() && context.chains.size() <= kContextChainsMax);
    append_text<std::uint16_t>(body, context.owner);
    append_text<std::uint8_t>(body, context.name);
    append_number(body, static_cast<std::uint8_t>(context.tags.size()));
    for (const std::string& tag : context.tags) append_text<std::uint8_t>(body, tag);
    append_number(body, numbers.find(context.record->text())->second);
    append_number(body, static_cast<std::uint64_t>(context.life.ttl.count()));
    append_number(body, static_cast<std::uint8_t>(context.life.is_sliding));
    append_number(body, context.priority);
    append_number(body, wall_of(context.created, now));
    append_number(body, wall_of(context.begun, now));
    append_number(body, context.used ? wall_of(*context.used, now) : std::uint64_t{0});
    append_number(body, context.lost_count);
    append_number(body, context.yielded_count);
    append_number(body, context.written_tokens);
    append_number(body, context.read_tokens);
    append_number(body, context.stored_token_seconds);
    append_number(body, static_cast<std::uint16_t>(context.chains.size()));
    std::size_t hash_count = 0;
    for (const KeptContext::Chain& chain : context.chains) {
      append_number(body, chain.count);
      append_number(body, chain.written);
      hash_count += chain.count;
    }
    KV_ASSERT(hash_count == context.hashes.size());
    const auto hashes = std::as_bytes(context.hashes.view());
    body.append(reinterpret_cast<const char*>(hashes.data()), hashes.size());
    append_number(body, context.place.prefix_count);
    append_number(body, static_cast<std::uint8_t>(context.place.positions != nullptr));
    if (!context.place.positions) continue;
    const auto positions = std::as_bytes(std::span(*context.place.positions));
    body.append(reinterpret_cast<const char*>(positions.data()), positions.size());
  }
  std::string bytes(kContextMagic);
  append_number(bytes, kContextFormat);
  append_number(bytes, static_cast<std::uint64_t>(body.size()));
  append_number(bytes, context_checksum(body));
  return bytes + body;
}

Result<ContextFile, Failure> read_contexts(std::string_view bytes, const ClockPair& now) {
  if (!bytes.starts_with(kContextMagic)) return context_failure("not in this form");
  FieldTaker from{bytes.substr(kContextMagic.size())};
  const auto format = from.number<std::uint32_t>();
  if (from.is_cut) return context_failure("cut off in the head");
  if (format != kContextFormat)
    return context_failure("format " + std::to_string(format) + ", this node reads " + std::to_string(kContextFormat));
  const auto size = from.number<std::uint64_t>(), checksum = from.number<std::uint64_t>();
  if (from.is_cut) return context_failure("cut off in the head");
  if (size != from.bytes.size())
    return context_failure(std::to_string(from.bytes.size()) + " bytes, of which there should be " +
                           std::to_string(size));
  if (checksum != context_checksum(from.bytes)) return context_failure("damaged: its checksum does not match");
  ContextFile file{.written_us = from.number<std::uint64_t>(), .contexts = {}};
  constexpr std::uint64_t kStepUs = std::chrono::minutes(5) / std::chrono::microseconds(1),  // as clocks are set
      kAwayUsMax = kAwayMax / std::chrono::microseconds(1);
  const bool is_behind = now.wall_us < file.written_us;
  const std::uint64_t distance = is_behind ? file.written_us - now.wall_us : now.wall_us - file.written_us;
  file.is_clock_doubted = distance > (is_behind ? kStepUs : kAwayUsMax);
  const ClockPair began{now.steady, is_behind || file.is_clock_doubted ? file.written_us : now.wall_us};
  std::vector<std::shared_ptr<const NamespaceRecord>> records;
  for (auto left = from.number<std::uint32_t>(); left > 0; --left) {
    const auto text = from.text<std::uint32_t>();
    if (from.is_cut || text.size() > kRecordBytesMax) return context_failure("cut off in the records");
    const auto record = NamespaceRecord::parse(text);
    if (!record) return context_failure("record " + std::to_string(records.size()) + ": " + record.error().text);
    if (record->is_set())
      return context_failure("record " + std::to_string(records.size()) + ": of a set, only chains have contexts");
    records.push_back(std::make_shared<const NamespaceRecord>(*record));
  }
  std::set<std::pair<std::string, std::string>> names;
  for (auto left = from.number<std::uint32_t>(); left > 0; --left) {
    KeptContext context;
    const std::string wrong = take_context(from, records, began, context);
    if (!wrong.empty()) return context_failure("context " + std::to_string(file.contexts.size()) + ": " + wrong);
    if (!names.emplace(context.owner, context.name).second)
      return context_failure("context " + std::to_string(file.contexts.size()) + ": '" + context.name +
                             "' comes twice");
    file.contexts.push_back(std::move(context));
  }
  if (from.is_cut) return context_failure("cut off");
  if (!from.bytes.empty()) return context_failure(std::to_string(from.bytes.size()) + " bytes too many");
  return file;
}

}  // namespace kv
