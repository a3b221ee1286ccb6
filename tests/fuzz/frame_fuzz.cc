// Any 32 bytes as a header, and what follows as the table of every operation.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/assert.h"
#include "tests/fuzz/input.h"
#include "transport/frames/frame.h"
#include "transport/wire_generated.h"

namespace kv {
namespace {

std::uint64_t sum;  // keeps the reads below from being optimised away

void use(std::uint64_t value) { sum += value; }
template <class T>
void use(const flatbuffers::Vector<T>* numbers) {
  if (numbers == nullptr) return;
  for (std::uint32_t i = 0; i < numbers->size(); ++i) use(numbers->Get(i));
}
void use(const flatbuffers::Vector<const wire::Hash*>* hashes) {
  if (hashes == nullptr) return;
  for (const wire::Hash* hash : *hashes) use(hash->bytes()->Get(31));
}
void use(const flatbuffers::Vector<const wire::ExtraDigest*>* extras) {
  if (extras == nullptr) return;
  for (const wire::ExtraDigest* extra : *extras) use(extra->bytes()->Get(15));
}
void use(const flatbuffers::String* text) {
  if (text != nullptr) use(text->str().size());
}
void use(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* texts) {
  if (texts == nullptr) return;
  for (const flatbuffers::String* text : *texts) use(text);
}
void use(const flatbuffers::Vector<flatbuffers::Offset<wire::ContextStatus>>* contexts) {
  if (contexts == nullptr) return;
  for (const wire::ContextStatus* context : *contexts) {
    use(context->name());
    use(context->tags());
    use(context->namespace_id());
    use(context->read_tokens());
    use(static_cast<std::uint64_t>(context->stored_token_seconds() > 0));
  }
}
void use(const flatbuffers::Vector<flatbuffers::Offset<wire::ClusterNode>>* nodes) {
  if (nodes == nullptr) return;
  for (const wire::ClusterNode* node : *nodes) {
    use(node->id());
    use(node->zone());
    use(static_cast<std::uint64_t>(node->weight() > 0) + node->state());
    if (node->endpoints() == nullptr) continue;
    for (const flatbuffers::String* endpoint : *node->endpoints()) use(endpoint);
  }
}

template <class Table, class... Get>
void read(std::span<const std::byte> bytes, Get... get) {
  const Table* const table = read_table<Table>(bytes);
  if (table != nullptr) (use((table->*get)()), ...);
}

void read_as_everything(std::span<const std::byte> bytes) {
  using namespace wire;
  read<HelloRequest>(bytes, &HelloRequest::version_max, &HelloRequest::identity);
  read<HelloResponse>(bytes, &HelloResponse::node_id, &HelloResponse::requests_max, &HelloResponse::region_bytes_max);
  read<OpenRequest>(bytes, &OpenRequest::record);
  read<OpenResponse>(bytes, &OpenResponse::block_bytes);
  read<MatchRequest>(bytes, &MatchRequest::hashes, &MatchRequest::token_ids, &MatchRequest::extras);
  read<MatchResponse>(bytes, &MatchResponse::lease, &MatchResponse::host_blocks);
  read<ClusterMapRequest>(bytes);
  read<ClusterMapResponse>(bytes, &ClusterMapResponse::epoch, &ClusterMapResponse::nodes);
  read<ContextRequest>(bytes, &ContextRequest::name, &ContextRequest::hashes, &ContextRequest::chain_counts,
                       &ContextRequest::tags, &ContextRequest::after, &ContextRequest::until_us);
  read<ContextResponse>(bytes, &ContextResponse::contexts);
  read<HotRootsRequest>(bytes, &HotRootsRequest::namespace_check);
  read<HotRootsResponse>(bytes, &HotRootsResponse::version, &HotRootsResponse::blocks);
  read<GetRequest>(bytes, &GetRequest::hashes, &GetRequest::offsets, &GetRequest::segment_ends);
  read<GetPart>(bytes, &GetPart::checksums, &GetPart::first_block);
  read<PutRequest>(bytes, &PutRequest::hashes, &PutRequest::positions, &PutRequest::token_ids, &PutRequest::offsets,
                   &PutRequest::extras);
  read<PutWant>(bytes, &PutWant::first_block, &PutWant::block_count);
  read<PutData>(bytes, &PutData::checksums, &PutData::block_count);
  read<PutResponse>(bytes, &PutResponse::stored, &PutResponse::refused_why);
  read<SetMatchRequest>(bytes, &SetMatchRequest::hashes, &SetMatchRequest::namespace_check);
  read<SetMatchResponse>(bytes, &SetMatchResponse::held, &SetMatchResponse::on_disk, &SetMatchResponse::block_bytes);
  read<SetGetRequest>(bytes, &SetGetRequest::hashes, &SetGetRequest::offsets, &SetGetRequest::rooms);
  read<SetGetPart>(bytes, &SetGetPart::blocks, &SetGetPart::block_bytes, &SetGetPart::checksums);
  read<SetGetResponse>(bytes, &SetGetResponse::too_long, &SetGetResponse::too_long_bytes, &SetGetResponse::unread);
  read<SetPutRequest>(bytes, &SetPutRequest::hashes, &SetPutRequest::block_bytes, &SetPutRequest::offsets);
  read<SetPutWant>(bytes, &SetPutWant::blocks);
  read<SetPutResponse>(bytes, &SetPutResponse::results, &SetPutResponse::refused_why);
  read<CancelRequest>(bytes, &CancelRequest::request_id);
  read<PrefixRequest>(bytes, &PrefixRequest::hashes);
  read<RegionAddRequest>(bytes, &RegionAddRequest::bytes);
  read<Error>(bytes, &Error::code, &Error::message);
  read<AdminRequest>(bytes, &AdminRequest::path, &AdminRequest::query);
  read<AdminResponse>(bytes, &AdminResponse::json);
}

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  Input input(data, size);
  const FrameLimits limits{.table_bytes_max = 4096, .payload_bytes_max = input.number(2)};
  std::array<std::byte, kFrameHeaderBytes> head{};
  const auto given = input.bytes(head.size());
  std::copy(given.begin(), given.end(), head.begin());
  const auto header = decode_frame_header(head, limits);
  if (header) {
    KV_ASSERT(header->table_bytes <= limits.table_bytes_max && header->payload_bytes <= limits.payload_bytes_max);
    KV_ASSERT(header->version == kFrameVersion);
    KV_ASSERT((header->flags & ~kFrameFlagsAll) == 0);
  } else {
    KV_ASSERT(!header.error().text.empty());
  }
  const auto rest = input.bytes(4096);
  alignas(8) static std::byte table[4096];
  std::copy(rest.begin(), rest.end(), table);
  const std::span<const std::byte> aligned(table, rest.size());
  (void)frame_checksum_ok(head, aligned);
  read_as_everything(aligned);
  if (header) {  // what is encoded again is decoded again, and its checksum is right
    std::array<std::byte, kFrameHeaderBytes> again{};
    encode_frame_header(*header, aligned, again);
    KV_ASSERT(frame_checksum_ok(again, aligned));
    const auto second = decode_frame_header(again, {.table_bytes_max = 4096, .payload_bytes_max = UINT64_MAX});
    KV_ASSERT(second && second->type == header->type && second->request_id == header->request_id);
  }
  return 0;
}
