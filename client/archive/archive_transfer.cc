#include "client/archive/archive_transfer.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "client/archive/archive_file.h"
#include "index/block_hash.h"

namespace kv {
namespace {

using Step = ArchiveProgress::Step;

std::string words_of(const error_code& error) {
  return error == asio::error::timed_out ? "the deadline passed" : error.message();
}
Failure call_failure(const std::string& what, const error_code& error) {
  return {error, what + ": " + words_of(error)};
}

bool goes_on(const ArchiveGoOn& go_on, Step step, std::size_t blocks, std::size_t of) {
  return !go_on || go_on({step, blocks, of});
}

std::size_t batch_blocks(const NamespaceRecord& record) {
  return std::max<std::size_t>(1, kArchiveBatchBytes / record.block_bytes());
}

/// Waits until a node has opened it; if all refuse, reports a refusal.
Result<Space, Failure> open_space(BlockingClient& client, const NamespaceRecord& record,
                                  std::chrono::microseconds deadline) {
  const Completion space = client.run({.op = Op::kOpen, .record = &record});
  if (space.error) return call_failure("cannot open the namespace", space.error);
  const auto opened = client.with([&](Client& each) { return each.wait_open(space.space, deadline); });
  if (!opened) return call_failure("cannot open the namespace", opened.error());
  return space.space;
}

/// How many leading blocks are held, in memory or on disk.
Result<std::size_t, Failure> count_there(BlockingClient& client, Space space, Hashes hashes,
                                         std::chrono::microseconds deadline) {
  const MatchOptions options{.deadline = deadline};
  const auto found = client.with([&](Client& each) { return each.match(space, hashes, options); });
  if (!found) return call_failure("cannot look for its blocks", found.error());
  if (found->why && found->block_count < hashes.size()) return call_failure("cannot look for its blocks", found->why);
  return found->block_count;
}

Failure none_there(std::size_t count, std::size_t wanted) {
  const std::string all = std::to_string(count) + " of its " + std::to_string(wanted) + " blocks are there";
  return {Errc::kNotFound, all + (count == 0 ? "" : "; the leading part can be had alone (partial)")};
}

/// Blocks from the nodes into the file, batch by batch.
Result<void, Failure> write_blocks(BlockingClient& client, Space space, const ArchiveHead& head, NewArchiveFile& file,
                                   ArchiveDigest& digest, const ContextExportOptions& options) {
  const std::size_t count = head.hashes.size(), block_bytes = head.record.block_bytes(), stripes = head.stripes();
  const std::size_t batch = std::min(count, batch_blocks(head.record));
  std::vector<std::byte> memory(batch * block_bytes);
  std::vector<std::span<std::byte>> blocks(count);
  std::vector<std::uint64_t> sums(count * stripes);
  for (std::size_t first = 0; first < count; first += batch) {
    if (!goes_on(options.go_on, Step::kRead, first, count)) return Failure(Errc::kCancelled);
    const std::size_t end = std::min(count, first + batch);
    for (std::size_t i = first; i < end; ++i)
      blocks[i] = std::span(memory).subspan((i - first) * block_bytes, block_bytes);
    GetOptions asked{.deadline = options.deadline};
    asked.checksums = std::span(sums).first(end * stripes);
    asked.first_block = first;
    // A node whose disk is slower than its wait for a block ends its answer there, and has the block a moment later.
    constexpr int kTries = 4;
    Result<GetResult> got = GetResult{};
    for (int tries = 0; tries < kTries && got && !got->why && got->block_count < end; ++tries) {
      got = client.with([&](Client& each) {
        return each.get(space, std::span(head.hashes).first(end), std::span(blocks).first(end), asked);
      });
    }
    if (!got) return call_failure("cannot read its blocks", got.error());
    if (got->block_count < end) {
      const std::string where = "block " + std::to_string(got->block_count) + " of " + std::to_string(count);
      if (got->why) return call_failure("cannot read " + where, got->why);
      return Failure(Errc::kNotFound, where + " has gone meanwhile");
    }
    for (std::size_t i = first; i < end; ++i) {
      const auto own = std::span(sums).subspan(i * stripes, stripes);
      // The client may be configured not to verify.
      if (!verify_block(head.record.checksum_seed(head.hashes[i], block_bytes), blocks[i], own))
        return Failure(Errc::kCorruptBlock, "block " + std::to_string(i) + ": its checksum does not match");
      for (const auto bytes : {std::as_bytes(own), std::span<const std::byte>(blocks[i])}) {
        digest.add(bytes);
        if (const auto written = file.write(bytes); !written) return written.error();
      }
      blocks[i] = {};
    }
  }
  static_cast<void>(goes_on(options.go_on, Step::kRead, count, count));
  return {};
}

/// Blocks from the file to the nodes, batch by batch. Returns the number of new ones.
Result<std::size_t, Failure> put_blocks(BlockingClient& client, Space space, const CheckedArchive& archive,
                                        OldArchiveFile& file, const ContextImportOptions& options) {
  const ArchiveHead& head = archive.head;
  const std::size_t count = head.hashes.size(), block_bytes = head.record.block_bytes(), stripes = head.stripes();
  const std::size_t batch = std::min(count, batch_blocks(head.record));
  std::vector<std::byte> memory(batch * block_bytes);
  std::vector<std::byte> sums(stripes * sizeof(std::uint64_t));
  std::vector<std::span<const std::byte>> blocks(count);
  if (const auto there = file.go_to(archive.head_bytes); !there) return there.error();
  std::size_t stored = 0;
  for (std::size_t first = 0; first < count; first += batch) {
    if (!goes_on(options.go_on, Step::kPut, first, count)) return Failure(Errc::kCancelled);
    const std::size_t end = std::min(count, first + batch);
    for (std::size_t i = first; i < end; ++i) {
      const auto block = std::span(memory).subspan((i - first) * block_bytes, block_bytes);
      for (const std::span<std::byte> to : {std::span(sums), block}) {
        const auto got = read_all(file, to);
        if (!got) return got.error();
        if (*got < to.size()) return Failure(Errc::kCorruptBlock, "the file was changed while it was read");
      }
      if (std::memcmp(sums.data(), archive.checksums.data() + i * stripes, sums.size()) != 0)
        return Failure(Errc::kCorruptBlock, "the file was changed while it was read");
      blocks[i] = block;
    }
    // Earlier blocks are stored; their bytes are placeholders, which fail the checksum if one has gone meanwhile.
    for (std::size_t i = 0; i < first; ++i) blocks[i] = std::span(memory).first(block_bytes);
    PutOptions asked{.deadline = options.deadline};
    asked.checksums = std::span(archive.checksums).first(end * stripes);
    const auto put = client.with([&](Client& each) {
      return each.put(space, std::span(head.hashes).first(end), std::span(blocks).first(end), asked);
    });
    if (!put) return call_failure("cannot put its blocks", put.error());
    stored += put->stored;
    if (put->refused > 0) {
      const std::string all =
          std::to_string(end - put->refused) + " of " + std::to_string(count) + " blocks are stored";
      return Failure(put->why ? put->why : make_error_code(Errc::kOutOfMemory),
                     all + ", and then: " + (put->why ? words_of(put->why) : "refused"));
    }
  }
  static_cast<void>(goes_on(options.go_on, Step::kPut, count, count));
  return stored;
}

Failure in_file(const std::string& file, const Failure& failure) {
  return {failure.code, failure.text.starts_with(file) ? failure.text : file + ": " + failure.text};
}

ArchivedContext archived_of(const ArchiveHead& head, std::size_t head_bytes, bool is_signed,
                            const NamedContext& context) {
  return {.name = head.name,
          .namespace_id = to_hex(head.record.id().bytes),
          .blocks = head.hashes.size(),
          .wanted_blocks = head.wanted_blocks,
          .bytes = head.file_bytes(head_bytes) + (is_signed ? kArchiveDigestBytes : 0),
          .is_signed = is_signed,
          .context = context};
}

}  // namespace

Result<ArchivedContext, Failure> export_context(BlockingClient& client, std::string_view name, const std::string& file,
                                                const ContextExportOptions& options) {
  const auto fail = [called = "context '" + std::string(name) + "'"](const Failure& why) {
    return Failure(why.code, called + ": " + why.text);
  };
  // Checked before any node is asked.
  const auto key = ArchiveKey::configured(options.key_file);
  if (!key) return key.error();
  NewArchiveFile made;
  if (const auto created = made.create(file, options.replaces); !created) return created.error();
  const auto told = client.with([&](Client& each) { return each.tell_context(name, options.deadline); });
  if (!told) {
    if (told.error() == Errc::kMismatch)
      return fail({told.error(), "nodes have different things under that name, or it has just changed"});
    return fail({told.error(), words_of(told.error())});
  }
  if (told->prefix_blocks == 0) {
    return fail({Errc::kUnsupported,
                 "whoever created it did not say in which order its blocks stand; create it again, then it can be "
                 "exported"});
  }
  auto record = NamespaceRecord::parse(told->record);
  if (!record) return fail({Errc::kBadRequest, "its record: " + record.error().text});
  ArchiveHead head;
  head.written =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch());
  head.record = *std::move(record);
  head.name = name;
  head.tags = told->context.tags;
  head.ttl = told->context.ttl;
  head.is_sliding = told->context.is_sliding;
  head.priority = told->context.priority;
  head.wanted_blocks = static_cast<std::uint32_t>(told->prefix_blocks);
  head.hashes = told->hashes;
  if (head.hashes.empty()) return fail({Errc::kNotFound, "the node that has its first block does not tell of it"});
  const auto space = open_space(client, head.record, options.deadline);
  if (!space) return fail(space.error());
  const auto count = count_there(client, *space, head.hashes, options.deadline);
  if (!count) return fail(count.error());
  if (*count == 0 || (*count < told->prefix_blocks && !options.is_partial))
    return fail(none_there(*count, told->prefix_blocks));
  head.hashes.resize(*count);
  if (const std::string wrong = wrong_head(head); !wrong.empty()) return fail({Errc::kBadRequest, wrong});
  const std::string begin = write_archive_head(head);
  ArchiveDigest digest;
  digest.add(std::as_bytes(std::span(begin)));
  if (const auto written = made.write(std::as_bytes(std::span(begin))); !written) return written.error();
  if (const auto written = write_blocks(client, *space, head, made, digest, options); !written) {
    return written.error().text.starts_with(file) ? written.error() : fail(written.error());
  }
  const BlockHash end = digest.end();
  if (const auto written = made.write(end.bytes); !written) return written.error();
  if (*key) {
    if (const auto written = made.write((*key)->sign(end).bytes); !written) return written.error();
  }
  if (const auto named = made.commit(); !named) return named.error();
  return archived_of(head, begin.size(), key->has_value(), told->context);
}

Result<ArchivedContext, Failure> import_context(BlockingClient& client, const std::string& file,
                                                const ContextImportOptions& options) {
  const auto key = ArchiveKey::configured(options.key_file);
  if (!key) return key.error();
  OldArchiveFile source;
  if (const auto opened = source.open(file); !opened) return opened.error();
  const auto archive = check_archive(
      source, [&](std::size_t blocks, std::size_t of) { return goes_on(options.go_on, Step::kCheck, blocks, of); },
      *key ? &**key : nullptr);
  if (!archive) return in_file(file, archive.error());
  const ArchiveHead& head = archive->head;
  const auto space = open_space(client, head.record, options.deadline);
  if (!space) return in_file(file, space.error());
  const auto stored = put_blocks(client, *space, *archive, source, options);
  if (!stored) return in_file(file, stored.error());
  ContextTime as_before;
  as_before.ttl = head.ttl;
  as_before.is_sliding = head.is_sliding;
  const std::string& name = options.name.empty() ? head.name : options.name;
  const ContextOptions asked{.deadline = options.deadline,
                             .name = name,
                             .life = options.life.value_or(as_before),
                             .tags = head.tags,
                             .priority = options.priority.value_or(head.priority)};
  const auto created = client.with([&](Client& each) { return each.create_context(*space, head.hashes, asked); });
  if (!created)
    return call_failure("its blocks are stored, and the context '" + name + "' cannot be created", created.error());
  ArchivedContext archived = archived_of(head, archive->head_bytes, archive->is_signed, *created);
  archived.name = name;
  archived.stored_blocks = *stored;
  return archived;
}

}  // namespace kv
