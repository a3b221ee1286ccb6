// store/node/session/session_verbs.cc: the verbs of the wire that move no bytes: open, match, retention, regions,
// lanes, stats.

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "store/node/session/session.h"
#include "transport/frame_message.h"
#include "transport/verbs/verbs_wire.h"

namespace kv {
namespace {

/// Processor time of this process: with it a load generator tells what a request costs the node.
double process_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Half of the evicted blocks were last used at most this long before, to within a factor of two; 0: none was evicted.
double eviction_age_p50_seconds(const StoreStats& stats) {
  std::uint64_t total = 0, seen = 0;
  for (const std::uint64_t count : stats.eviction_age_log2_ms) total += count;
  for (std::size_t i = 0; i < stats.eviction_age_log2_ms.size() && total > 0; ++i) {
    seen += stats.eviction_age_log2_ms[i];
    if (seen * 2 >= total) return static_cast<double>(std::uint64_t{2} << i) / 1000;
  }
  return 0;
}

}  // namespace
void Session::on_open(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto* request = read_table<wire::OpenRequest>(frame.table);
  if (request == nullptr || request->record() == nullptr) {
    return refuse(FrameType::kOpen, id, Errc::kBadRequest, "open: the table fails verification or lacks `record`");
  }
  std::string why;
  const auto record = NamespaceRecord::parse(request->record()->string_view(), &why);
  if (!record) return refuse(FrameType::kOpen, id, record.error(), why);
  std::size_t count = 0;
  const auto space = node_.store.with([&](Store& store) {
    count = store.namespace_count();
    return store.open(*record, id_);
  });
  if (!space && space.error() == Errc::kBusy) {
    return refuse(
        FrameType::kOpen, id, space.error(),
        "open: all " + std::to_string(count) +
            " namespaces that this node may have hold blocks, in memory or on disk, or are being written. Drop "
            "some (kvstorectl namespaces, kvstorectl drop --all), or raise namespace-count-max");
  }
  if (!space) {
    return refuse(FrameType::kOpen, id, space.error(),
                  "open: " + space.error().message() + " (block_bytes " + std::to_string(record->block_bytes()) + ")");
  }
  const OpenSpace opened(*space, *record);
  const std::uint32_t handle = version_ < 2 ? node_.handles.open(node_.instance, opened) : spaces_.open(opened);
  reply(FrameType::kOpen, id, 0, [&](FlatBufferBuilder& builder) {
    const auto name = version_ < 2 ? 0 : create_bytes(builder, opened.name.bytes);
    return wire::CreateOpenResponse(builder, handle, record->block_bytes(), name);
  });
}

void Session::on_match(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto* request = read_table<wire::MatchRequest>(frame.table);
  if (request == nullptr)
    return refuse(FrameType::kMatch, id, Errc::kBadRequest, "match: the table fails verification");
  const OpenSpace* const space = find_space(frame, request->space(), request->namespace_check());
  if (space == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  Store::MatchOptions options;
  options.session = id_;
  options.lease = request->lease();
  options.token_ids = numbers_of(request->token_ids());
  options.extras = extras_of(request->extras());
  auto match =
      node_.store.with([&](Store& store) { return store.match(space->id, hashes, options, node_.clock.now()); });
  if (!match) {
    return refuse(FrameType::kMatch, id, match.error(),
                  "match: " + match.error().message() + " (space " + std::to_string(request->space()) + ", " +
                      count_text("hashes", hashes.size(), node_.chain_blocks_max) +
                      ", extras: " + std::to_string(options.extras.size()) + ")");
  }
  if (match->lease != LeaseId{}) lease_until_ = node_.clock.now() + node_.lease_duration;
  if (node_.spill == nullptr || !node_.spill->can_read()) match->disk_block_count = 0;
  const std::size_t hit_count = match->block_count + match->disk_block_count;
  node_.metrics.add_tokens(hit_count * space->block_size, (hashes.size() - hit_count) * space->block_size);
  const auto disk_time = match->disk_block_count > 0
                             ? node_.spill->estimate_read(match->disk_block_count * space->block_bytes)
                             : std::chrono::microseconds(0);
  reply(FrameType::kMatch, id, 0, [&](FlatBufferBuilder& builder) {
    wire::Hash partial;
    std::memcpy(&partial, match->partial_block.bytes.data(), sizeof partial);
    const auto lease_us = std::chrono::duration_cast<std::chrono::microseconds>(node_.lease_duration).count();
    return wire::CreateMatchResponse(
        builder, static_cast<std::uint32_t>(match->block_count), static_cast<std::uint32_t>(match->disk_block_count),
        static_cast<std::uint64_t>(match->lease), match->lease == LeaseId{} ? 0 : static_cast<std::uint64_t>(lease_us),
        static_cast<std::uint16_t>(match->lease_error), static_cast<std::uint32_t>(match->partial_token_count),
        match->partial_token_count > 0 ? &partial : nullptr, static_cast<std::uint64_t>(disk_time.count()));
  });
  if (request->prefetch() && match->disk_block_count > 0) prefetch(frame, *space, hashes);
}

void Session::on_release(const Frame& frame) {
  const auto* request = read_table<wire::ReleaseRequest>(frame.table);
  if (request == nullptr) {
    return refuse(FrameType::kRelease, frame.header.request_id, Errc::kBadRequest,
                  "release: the table fails verification");
  }
  const auto released = node_.store.with([&](Store& store) { return store.release(id_, LeaseId(request->lease())); });
  if (!released) {
    return refuse(FrameType::kRelease, frame.header.request_id, released.error(),
                  "lease: " + std::to_string(request->lease()) + ", not a live lease of this session");
  }
  reply(FrameType::kRelease, frame.header.request_id, 0,
        [](FlatBufferBuilder& builder) { return wire::CreateEmptyResponse(builder); });
}

void Session::on_prefix(const Frame& frame) {
  const FrameType type = frame.header.type;
  const auto* request = read_table<wire::PrefixRequest>(frame.table);
  const std::string name = frame_type_name(type);
  if (request == nullptr)
    return refuse(type, frame.header.request_id, Errc::kBadRequest, name + ": the table fails verification");
  const OpenSpace* const opened = find_space(frame, request->space(), request->namespace_check());
  if (opened == nullptr) return;
  const auto hashes = hashes_of(request->hashes());
  const SpaceId space = opened->id;
  if (type == FrameType::kDrop && dropping_count_ >= node_.limits.requests_max) {
    return refuse(type, frame.header.request_id, Errc::kBusy,
                  count_text("drops in flight", dropping_count_, node_.limits.requests_max));
  }
  bool is_dropping = false;
  DiskDrop dropped;
  const auto count = node_.store.with([&](Store& store) {
    switch (type) {
      case FrameType::kTouch: return store.touch(space, hashes, node_.clock.now());
      case FrameType::kPin: return store.retain(space, hashes);
      case FrameType::kUnpin: return store.unretain(space, hashes);
      default: break;
    }
    auto dropped_now = store.drop(space, hashes, &dropped);
    is_dropping = store.is_dropping();
    return dropped_now;
  });
  if (!count) {
    return refuse(type, frame.header.request_id, count.error(),
                  name + ": " + count.error().message() + " (hashes: " + std::to_string(hashes.size()) + ")");
  }
  if (is_dropping) {  // many blocks: nobody finds them any more, but freeing them takes more than one call
    ++job_count_;
    ++dropping_count_;
    asio::co_spawn(executor_, finish_drop(shared_from_this(), frame.header.request_id, *count, dropped),
                   asio::detached);
    return;
  }
  if (type == FrameType::kDrop) return answer_drop(frame.header.request_id, *count, dropped);
  reply(type, frame.header.request_id, 0,
        [&](FlatBufferBuilder& builder) { return wire::CreateCountResponse(builder, *count); });
}

asio::awaitable<void> Session::finish_drop(std::shared_ptr<Session> self, std::uint64_t request_id, std::size_t count,
                                           DiskDrop drop) {
  for (bool is_dropping = true; is_dropping && !self->ending_;) {
    co_await asio::post(self->executor_, asio::use_awaitable);  // others have their turn
    self->node_.store.with([&](Store& store) {
      count += store.drop_more(self->node_.clock.now());
      is_dropping = store.is_dropping();
    });
  }
  if (!self->ending_) self->answer_drop(request_id, count, drop);
  --self->dropping_count_;
  self->writer_.flush();
  self->job_ended();
}

/// Nobody finds the blocks from here on. With a disk tier the answer waits for it, so that it holds after a restart
/// too.
void Session::answer_drop(std::uint64_t request_id, std::size_t count, const DiskDrop& drop) {
  const std::uint64_t number = ++drop_last_;
  const bool is_full = drops_.size() >= node_.limits.requests_max;
  drops_[number] = {request_id, count, node_.clock.make_alarm(executor_)};
  if (node_.spill == nullptr) return end_drop(number, true);
  if (is_full) return end_drop(number, false);
  const std::weak_ptr<Session> weak = weak_from_this();
  // Posted: it ends the alarm, and the disk's thread is not ours.
  const auto end = [weak, number, executor = executor_](bool is_kept) {
    asio::post(executor, [weak, number, is_kept] {
      if (const auto self = weak.lock()) self->end_drop(number, is_kept);
    });
  };
  drops_[number].alarm->arm(node_.clock.now() + node_.limits.drop_wait, [end] { end(false); });
  node_.spill->keep_drop(drop, end);
}

void Session::end_drop(std::uint64_t number, bool is_kept) {
  const auto found = drops_.find(number);
  if (found == drops_.end()) return;  // it took too long, and that has been said
  const auto answered = drops_.extract(found);
  const PendingDrop& drop = answered.mapped();
  if (ending_) return;
  reply(FrameType::kDrop, drop.request_id, 0, [&](FlatBufferBuilder& builder) {
    return wire::CreateCountResponse(builder, drop.count, /*until_restart=*/!is_kept);
  });
  writer_.flush();
}

void Session::on_region_add(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const Descriptor fd = stream_->take_descriptor();
  const auto* request = read_table<wire::RegionAddRequest>(frame.table);
  if (request == nullptr)
    return refuse(FrameType::kRegionAdd, id, Errc::kBadRequest, "region_add: the table fails verification");
  const bool is_verbs = request->slices() != nullptr && request->slices()->size() > 0;
  if (is_verbs ? lanes_ == nullptr : !stream_->can_pass_descriptors()) {
    return refuse(FrameType::kRegionAdd, id, Errc::kUnsupported,
                  is_verbs ? "region_add: this node has no RDMA"
                           : "region_add: memory can be lent over a Unix socket, or registered for RDMA, only");
  }
  const SessionLimits& limits = node_.limits;
  if (regions_.size() + regions_coming_ >= limits.region_count_max) {
    return refuse(FrameType::kRegionAdd, id, Errc::kBusy,
                  count_text("regions", regions_.size() + regions_coming_ + 1, limits.region_count_max));
  }
  if (request->bytes() > limits.region_bytes_max - region_bytes_) {
    return refuse(FrameType::kRegionAdd, id, Errc::kTooLarge,
                  count_text("region bytes", request->bytes(), limits.region_bytes_max - region_bytes_));
  }
  const auto region = std::make_shared<Lent>();
  region->bytes = request->bytes();
  if (is_verbs) {
    region->slices = read_slices(frame, *request);
    if (region->slices.empty()) return;
    region->lanes = static_cast<std::uint32_t>((std::uint64_t{1} << region->slices[0].rkeys.size()) - 1);
  } else {
    std::string why;
    auto mapped = MappedRegion::map(fd, request->bytes(), &why);
    if (!mapped) return refuse(FrameType::kRegionAdd, id, mapped.error(), why);
    auto loan = node_.lent->admit(std::move(*mapped), &why);
    if (!loan) return refuse(FrameType::kRegionAdd, id, loan.error(), why);
    region->mapped = std::move(*loan);
  }
  region_bytes_ += request->bytes();
  node_.metrics.add_region_bytes(static_cast<std::int64_t>(request->bytes()));
  ++regions_coming_;
  if (is_verbs) return region_is_ready(id, region, std::nullopt);
  ++job_count_;
  node_.lent->prepare(region->mapped, abandoned_, executor_,
                      [self = shared_from_this(), id, region](std::optional<std::uint64_t> hole) {
                        self->region_is_ready(id, region, hole);
                        self->writer_.flush();
                        self->job_ended();
                      });
}

void Session::region_is_ready(std::uint64_t request_id, std::shared_ptr<Lent> region,
                              std::optional<std::uint64_t> hole) {
  --regions_coming_;
  if (hole || ending_) {
    unmap(*region);
    region_bytes_ -= region->bytes;
    node_.metrics.add_region_bytes(-static_cast<std::int64_t>(region->bytes));
    if (!hole) return;
    node_.lent->count_hole();
    return refuse(FrameType::kRegionAdd, request_id, Errc::kNoRegion,
                  "region: bytes: " + std::to_string(region->bytes) + ", but the memfd has no memory at " +
                      std::to_string(*hole) + "; its owner touches all of it first");
  }
  region->looked = node_.clock.now();
  regions_.emplace(++region_last_, region);
  reply(FrameType::kRegionAdd, request_id, 0,
        [&](FlatBufferBuilder& builder) { return wire::CreateRegionResponse(builder, region_last_); });
}

bool Session::has_hole(Lent& region) {
  // Between two looks a transfer moves some megabytes, as much as within one step of it, whose start is all that a
  // look can speak of.
  constexpr Duration kLookInterval = 1ms;
  const TimePoint now = node_.clock.now();
  if (!region.mapped || now - region.looked < kLookInterval) return false;
  if (region.mapped->region().has_lost_memory()) {
    node_.lent->count_hole();
    return true;  // and is looked for again at once by the next
  }
  region.looked = now;
  return false;
}

void Session::unmap(Lent& region) {
  if (region.mapped) node_.lent->give_back(std::move(region.mapped));
}

std::vector<RemoteSlice> Session::read_slices(const Frame& frame, const wire::RegionAddRequest& request) {
  constexpr std::size_t kSliceCountMax = 4096;
  constexpr std::uint64_t kSliceBytesMin = 64 * 1024;  ///< Or a block could take a request for each of its bytes.
  const auto fail = [&](Errc code, const std::string& message) {
    refuse(FrameType::kRegionAdd, frame.header.request_id, code, message);
    return std::vector<RemoteSlice>();
  };
  const auto& given = *request.slices();
  if (given.size() > kSliceCountMax) return fail(Errc::kTooLarge, count_text("slices", given.size(), kSliceCountMax));
  const std::uint32_t lane_count_max = lanes_->config().lane_count_max;
  std::vector<RemoteSlice> slices;
  std::uint64_t total = 0;
  for (const wire::RegionSlice* each : given) {
    const auto rkeys = numbers_of(each->rkeys());
    const std::string field = "slices[" + std::to_string(slices.size()) + "].";
    if (rkeys.empty() || rkeys.size() > lane_count_max || (!slices.empty() && rkeys.size() != slices[0].rkeys.size())) {
      return fail(Errc::kBadRequest, field + "rkeys: " + std::to_string(rkeys.size()) + ", the same count, 1.." +
                                         std::to_string(lane_count_max) + ", is due in each");
    }
    const bool is_last = slices.size() + 1 == given.size();
    if (each->bytes() < (is_last ? 1 : kSliceBytesMin) || each->bytes() > request.bytes() - total ||
        each->address() > ~each->bytes()) {
      return fail(Errc::kBadRequest, field + "bytes: " + std::to_string(each->bytes()) + " at " +
                                         std::to_string(each->address()) + ", with " +
                                         std::to_string(request.bytes() - total) +
                                         " of the region left; all but the last have at least 65536");
    }
    slices.push_back({total, each->address(), each->bytes(), std::vector<std::uint32_t>(rkeys.begin(), rkeys.end())});
    total += each->bytes();
  }
  if (total != request.bytes()) {
    return fail(Errc::kBadRequest,
                "bytes: " + std::to_string(request.bytes()) + ", the slices have " + std::to_string(total));
  }
  return slices;
}

void Session::on_verbs_connect(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto fail = [&](Errc code, const std::string& message) {
    refuse(FrameType::kVerbsConnect, id, code, "verbs_connect: " + message);
  };
  const auto* request = read_table<wire::VerbsConnectRequest>(frame.table);
  if (request == nullptr || request->lanes() == nullptr || request->lanes()->size() == 0)
    return fail(Errc::kBadRequest, "the table fails verification or has no lane");
  if (!lanes_) return fail(Errc::kUnsupported, "this node has no RDMA");
  if (lanes_->is_connecting()) return fail(Errc::kBusy, "another is in progress");
  const std::uint32_t lane_count_max = lanes_->config().lane_count_max;
  std::vector<SessionLanes::Offer> offers;
  for (const wire::LaneOffer* each : *request->lanes()) {
    const std::string field = "lanes[" + std::to_string(offers.size()) + "].";
    const bool has_messages = lanes_->config().message_count_max > 0;
    const std::uint32_t lane_max = has_messages ? lane_count_max : lane_count_max - 1;
    if (each->lane() > lane_max || offers.size() > lane_max)
      return fail(Errc::kBadRequest, field + count_text("lane", each->lane(), lane_max));
    if ((each->lane() == lane_count_max) != (each->messages() > 0) || each->messages() > kMessageCountMax)
      return fail(Errc::kBadRequest, field + count_text("messages", each->messages(), kMessageCountMax) +
                                         "; at least 1 on lane " + std::to_string(lane_count_max) + ", 0 on others");
    for (const SessionLanes::Offer& other : offers) {
      if (other.lane == each->lane())
        return fail(Errc::kBadRequest, field + "lane: " + std::to_string(each->lane()) + ", twice");
    }
    std::string why;
    const auto end = verbs::decode(each->end(), &why);
    if (!end) return fail(Errc::kBadRequest, field + why);
    offers.push_back({each->lane(), *end, each->messages()});
  }
  ++job_count_;
  lanes_->connect(std::move(offers), [self = shared_from_this(), id](std::vector<SessionLanes::Answer> answers) {
    for (const SessionLanes::Answer& each : answers) {
      const std::string refusal = each.end ? "" : each.why;
      const bool is_new = std::exchange(self->lane_refusals_[each.lane], refusal) != refusal;
      if (is_new && !refusal.empty())  // a client asks every few seconds
        self->warn(LogKind::kLane, [&] { return "lane " + std::to_string(each.lane) + ": " + refusal; });
    }
    self->reply(FrameType::kVerbsConnect, id, 0, [&](FlatBufferBuilder& builder) {
      std::vector<flatbuffers::Offset<wire::LaneAnswer>> lanes;
      for (const SessionLanes::Answer& each : answers) {
        lanes.push_back(each.end ? wire::CreateLaneAnswer(builder, each.lane, verbs::encode(builder, *each.end), 0,
                                                          each.message_count)
                                 : wire::CreateLaneAnswerDirect(builder, each.lane, 0, each.why.c_str()));
      }
      return wire::CreateVerbsConnectResponseDirect(builder, &lanes);
    });
    self->writer_.flush();
    self->job_ended();
  });
}

void Session::on_region_remove(const Frame& frame) {
  const std::uint64_t id = frame.header.request_id;
  const auto* request = read_table<wire::RegionRemoveRequest>(frame.table);
  if (request == nullptr)
    return refuse(FrameType::kRegionRemove, id, Errc::kBadRequest, "region_remove: the table fails verification");
  const auto found = regions_.find(request->region());
  if (found == regions_.end()) {
    return refuse(FrameType::kRegionRemove, id, Errc::kNoRegion,
                  "region: " + std::to_string(request->region()) + ", not lent by this session");
  }
  const std::shared_ptr<Lent> region = found->second;
  regions_.erase(found);
  region->removing = true;
  region->removal_request = id;
  ++region->user_count;  // ourselves
  for (auto& [request_id, job] : gets_) {
    if (job->region == region) cancel(*job);
  }
  release(region);
}

void Session::release(const std::shared_ptr<Lent>& region) {
  KV_ASSERT(region->user_count > 0);
  if (--region->user_count > 0 || !region->removing) return;
  unmap(*region);
  region_bytes_ -= region->bytes;
  node_.metrics.add_region_bytes(-static_cast<std::int64_t>(region->bytes));
  reply(FrameType::kRegionRemove, region->removal_request, 0,
        [](FlatBufferBuilder& builder) { return wire::CreateEmptyResponse(builder); });
}

void Session::on_stats(const Frame& frame) {
  StoreStats stats;
  std::vector<NamespaceStats> spaces;
  node_.store.with([&](Store& store) {
    stats = store.stats();
    spaces = store.namespaces();
  });
  reply(FrameType::kStats, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::Stat>> values;
    const auto add = [&](const char* name, double value) {
      values.push_back(wire::CreateStatDirect(builder, name, value));
    };
    const auto count = [&](const char* name, std::uint64_t value) { add(name, static_cast<double>(value)); };
    add("uptime_seconds", std::chrono::duration<double>(node_.clock.now() - node_.started).count());
    add("cpu_seconds", process_cpu_seconds());
    count("sessions", node_.metrics.session_count());
    add("eviction_age_p50_seconds", eviction_age_p50_seconds(stats));
    for (const StoreStatName& stat : kStoreStatNames) count(stat.name, stats.*stat.value);
    if (node_.spill != nullptr) {
      for (const NodeMetrics::Value& stat : node_.spill->stats()) add(stat.name, stat.value);
    }
    for (const NodeMetrics::Value& stat : node_.lent->stats()) add(stat.name, stat.value);
    if (VerbsNode* const verbs = node_.verbs) {
      for (const NodeMetrics::Value& stat : verbs->stats()) add(stat.name, stat.value);
    }
    std::vector<flatbuffers::Offset<wire::NamespaceStat>> namespaces;
    for (const NamespaceStats& space : spaces) {
      namespaces.push_back(
          wire::CreateNamespaceStatDirect(builder, space.record.c_str(), space.block_count, space.total_bytes));
    }
    return wire::CreateStatsResponseDirect(builder, &values, &namespaces);
  });
}

}  // namespace kv
