#include "store/node/session/core/region_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"

namespace kv {

// -- Region

Region::Region(RegionTable& table, std::uint64_t byte_count) : table_(table), bytes_(byte_count) {
  table_.add_bytes(static_cast<std::int64_t>(bytes_));
}

Region::~Region() {
  SessionCore& session = table_.session();
  if (loan_) session.node.lent->give_back(std::move(loan_));
  table_.add_bytes(-static_cast<std::int64_t>(bytes_));
  if (removal_request_) session.replies.reply_empty(FrameType::kRegionRemove, *removal_request_);
}

bool Region::has_hole(LentRegions& lent, TimePoint now) {
  // Between two checks a transfer moves some megabytes, as within one step, of which a check covers only the start.
  constexpr Duration kLookInterval = 1ms;
  if (!is_mapped() || now - looked_ < kLookInterval) return false;
  if (loan_->region().has_lost_memory()) {
    lent.count_hole();
    return true;  // leaves looked_, so the next call checks again at once
  }
  looked_ = now;
  return false;
}

// -- RegionTable

void RegionTable::add_bytes(std::int64_t bytes) {
  KV_ASSERT(bytes >= 0 || bytes_ >= static_cast<std::uint64_t>(-bytes));
  bytes_ += static_cast<std::uint64_t>(bytes);
  session_.node.metrics.add_region_bytes(bytes);
}

void RegionTable::on_add(const Frame& frame) {
  const Descriptor fd = session_.stream->take_descriptor();
  const auto* request = read_request<wire::RegionAddRequest>(session_, frame);
  if (request == nullptr) return;
  const bool is_remote = request->slices() != nullptr && request->slices()->size() > 0;
  if (is_remote ? !rdma_.is_offered() : !session_.stream->can_pass_descriptors()) {
    return session_.refuse(frame, Errc::kUnsupported,
                           is_remote ? "region_add: this node has no RDMA"
                                     : "region_add: memory can be lent over a Unix socket, or registered for RDMA, "
                                       "only");
  }
  const SessionLimits& limits = *session_.node.limits;
  const std::size_t count = regions_.size() + coming_count_;
  if (count >= limits.region_count_max)
    return session_.refuse(frame, Errc::kBusy, count_text("regions", count + 1, limits.region_count_max));
  const std::uint64_t bytes_left = limits.region_bytes_max - std::min<std::uint64_t>(limits.region_bytes_max, bytes_);
  if (request->bytes() > bytes_left)
    return session_.refuse(frame, Errc::kTooLarge, count_text("region bytes", request->bytes(), bytes_left));
  const std::uint64_t id = frame.header.request_id;
  if (is_remote) {
    auto memory = rdma_.read_memory(frame, *request);
    if (!memory) return;
    const auto region = std::make_shared<Region>(*this, request->bytes());
    region->reach(std::move(*memory));
    ++coming_count_;
    return is_ready(id, region, std::nullopt);
  }
  auto mapped = MappedRegion::map(fd, request->bytes());
  if (!mapped) return session_.refuse(frame, mapped.error());
  auto loan = session_.node.lent->admit(std::move(*mapped));
  if (!loan) return session_.refuse(frame, loan.error());
  const auto region = std::make_shared<Region>(*this, request->bytes());
  region->map(std::move(*loan));
  ++coming_count_;
  const auto job = std::make_shared<SessionJob>(session_.shared_from_this());
  session_.node.lent->prepare(region->loan(), abandoned_, session_.executor,
                              [this, id, job, region](std::optional<std::uint64_t> hole) mutable {
                                is_ready(id, std::move(region), hole);
                                session_.writer.flush();
                                job->end();
                              });
}

void RegionTable::is_ready(std::uint64_t request_id, std::shared_ptr<Region> region,
                           std::optional<std::uint64_t> hole) {
  KV_ASSERT(coming_count_ > 0);
  --coming_count_;
  if (hole) {
    session_.node.lent->count_hole();
    return session_.replies.refuse(
        FrameType::kRegionAdd, request_id, Errc::kNoRegion,
        fmt::format("region: bytes: {}, but the memfd has no memory at {}; its owner touches all of it first",
                    region->bytes(), *hole));
  }
  if (session_.is_ending) return;
  region->was_looked_at(session_.node.clock.now());
  regions_.emplace(++last_, std::move(region));
  session_.replies.reply(FrameType::kRegionAdd, request_id, 0,
                         [&](FlatBufferBuilder& builder) { return wire::CreateRegionResponse(builder, last_); });
}

std::shared_ptr<Region> RegionTable::on_remove(const Frame& frame) {
  const auto* request = read_request<wire::RegionRemoveRequest>(session_, frame);
  if (request == nullptr) return nullptr;
  const auto found = regions_.find(request->region());
  if (found == regions_.end()) {
    session_.refuse(frame, Errc::kNoRegion, fmt::format("region: {}, not lent by this session", request->region()));
    return nullptr;
  }
  std::shared_ptr<Region> region = std::move(found->second);
  regions_.erase(found);
  region->answer_when_gone(frame.header.request_id);
  return region;
}

std::optional<std::shared_ptr<Region>> RegionTable::find(const Frame& frame, const RegionTarget& target,
                                                         std::size_t hash_count, std::uint64_t block_bytes) {
  const auto fail = [&](Errc code, const std::string& message) -> std::optional<std::shared_ptr<Region>> {
    session_.refuse(frame, code, message);
    return std::nullopt;
  };
  if (target.region == 0) {
    if (target.offsets.empty()) return std::shared_ptr<Region>();
    return fail(Errc::kBadRequest, fmt::format("offsets: {}, none without a region", target.offsets.size()));
  }
  const auto found = regions_.find(target.region);
  if (found == regions_.end())
    return fail(Errc::kNoRegion, fmt::format("region: {}, not lent by this session", target.region));
  if (target.offsets.size() != hash_count) {
    return fail(Errc::kBadRequest,
                fmt::format("offsets: {}, one per hash ({}) is due", target.offsets.size(), hash_count));
  }
  const std::uint64_t size = found->second->bytes();
  KV_ASSERT(target.lengths.empty() || target.lengths.size() == hash_count);
  for (std::size_t i = 0; i < hash_count; ++i) {
    const std::uint64_t offset = target.offsets[i];
    const std::uint64_t length = target.lengths.empty() ? block_bytes : target.lengths[i];
    if (offset > size || size - offset < length) {
      return fail(Errc::kNoRegion,
                  fmt::format("offsets: {} + {} bytes is past the region's end {}", offset, length, size));
    }
  }
  return found->second;
}

}  // namespace kv
