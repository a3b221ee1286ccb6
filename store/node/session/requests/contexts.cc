#include "store/node/session/requests/contexts.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/printable.h"
#include "store/node/session/core/session_wire.h"
#include "transport/frames/frame.h"

namespace kv {
namespace {

constexpr std::uint64_t kUsMax = static_cast<std::uint64_t>(kContextTtlMax / std::chrono::microseconds(1));

const char* act_name(ContextAct act) {
  switch (act) {
    case ContextAct::kCreate: return "create";
    case ContextAct::kList: return "list";
    case ContextAct::kExtend: return "extend";
    case ContextAct::kDelete: return "delete";
    case ContextAct::kWarm: return "warm";
    case ContextAct::kStopWarming: return "stop_warming";
    case ContextAct::kTell: return "tell";
  }
  return "unknown";
}

std::string_view said(const flatbuffers::String* text) {
  return text == nullptr ? std::string_view() : text->string_view();
}

/// The error in the request's texts; empty: they are valid.
std::string wrong_text(const wire::ContextRequest& request, ContextAct act) {
  const std::string_view name = said(request.name()), after = said(request.after());
  const bool needs_name = act != ContextAct::kList;
  if ((needs_name || !name.empty()) && !is_context_name(name))
    return "name: '" + printable(name.substr(0, kContextNameBytesMax)) + "', " + kContextNameAllowed;
  const auto hash_count = request.hashes() == nullptr ? 0 : request.hashes()->size();
  if (request.positions() != nullptr && request.positions()->size() != hash_count)
    return fmt::format("positions: {}, of {} hashes", request.positions()->size(), hash_count);
  if (after.size() > kContextNameBytesMax) return count_text("after bytes", after.size(), kContextNameBytesMax);
  if (request.tags() == nullptr) return "";
  if (request.tags()->size() > kContextTagsMax) return count_text("tags", request.tags()->size(), kContextTagsMax);
  for (const flatbuffers::String* const tag : *request.tags()) {
    if (!is_context_tag(tag->string_view()))
      return "tags: '" + printable(tag->string_view().substr(0, kContextTagBytesMax)) + "', " + kContextTagAllowed;
  }
  return "";
}

/// nullopt: the requested end is in the past, too far away, or given twice.
std::optional<ContextLife> life_of(const wire::ContextRequest& request) {
  std::uint64_t us = request.ttl_us();
  if (request.until_us() > 0) {
    const std::uint64_t now = wall_us();
    if (us > 0 || request.sliding() || request.until_us() <= now) return std::nullopt;
    us = request.until_us() - now;
  }
  if (us == 0 || us > kUsMax) return std::nullopt;
  return ContextLife{std::chrono::microseconds(us), request.sliding()};
}

/// In a request: 0..9, or this for unspecified.
constexpr std::uint8_t kPriorityUnsaid = 255;

const char* why_words(Errc why) {
  switch (why) {
    case Errc::kNotFound: return "the rest is not in memory";
    case Errc::kBusy: return "retained-fraction-max is reached";
    case Errc::kOverQuota: return "the tenant's retained-bytes-max is reached";
    case Errc::kDraining: return "the node ends";
    default: return "unknown";
  }
}

Result<ContextDesk::View> of_one(Store& store, ContextAct act, const std::string& owner, const std::string& name,
                                 const std::optional<ContextLife>& life, std::optional<std::uint8_t> priority,
                                 TimePoint now) {
  switch (act) {
    case ContextAct::kExtend: return store.extend_context(owner, name, *life, now, priority);
    case ContextAct::kDelete: return store.delete_context(owner, name, now);
    case ContextAct::kWarm: return store.warm_context(owner, name, /*is_wanted=*/true, now);
    case ContextAct::kStopWarming: return store.warm_context(owner, name, /*is_wanted=*/false, now);
    default: return store.find_context(owner, name, now);
  }
}

/// For kTell: a part of a context's content.
struct Told {
  const ContextDesk::Content& content;
  std::size_t first = 0, count = 0;
};

void reply_contexts(SessionCore& session, const SessionCore::Frame& frame, const std::vector<ContextDesk::View>& views,
                    bool has_more, TimePoint now, const Told* content = nullptr) {
  const std::uint64_t wall = wall_us();
  // The store's times are converted by the wall clock of this moment.
  const auto told = [&](TimePoint when) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(when - now).count();
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(wall) + us);
  };
  session.replies.reply(FrameType::kContext, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts;
    for (const ContextDesk::View& view : views) {
      const NamespaceRecord shown = view.record->unsalted();
      const auto name = builder.CreateString(view.name);
      const auto tags = builder.CreateVectorOfStrings(view.tags);
      const auto space = create_bytes(builder, shown.id().bytes);
      const auto model = builder.CreateString(printable(shown.field("model")));
      const auto ttl = std::chrono::duration_cast<std::chrono::microseconds>(view.life.ttl).count();
      contexts.push_back(wire::CreateContextStatus(
          builder, name, tags, space, model, static_cast<std::uint32_t>(shown.block_size()),
          static_cast<std::uint32_t>(view.wanted_count), static_cast<std::uint32_t>(view.kept_count),
          view.kept_count * shown.block_bytes(), static_cast<std::uint16_t>(view.why), view.lost_count,
          view.life.is_sliding, static_cast<std::uint64_t>(ttl), told(view.created), told(view.end),
          view.used ? told(*view.used) : 0, view.written_tokens, view.read_tokens, view.stored_token_seconds,
          view.is_warming, view.memory_count.has_value(), static_cast<std::uint32_t>(view.memory_count.value_or(0)),
          static_cast<std::uint32_t>(view.disk_count.value_or(0)), view.priority, view.yielded_count));
    }
    const auto list = builder.CreateVector(contexts);
    if (content == nullptr) return wire::CreateContextResponse(builder, list, has_more);
    const ContextDesk::Content& of = content->content;
    // Without the fields added by the node: as callers supply it.
    const auto callers = views.front().record->with(
        {{std::string(NamespaceRecord::kNodeSalt), ""}, {std::string(NamespaceRecord::kNodeTenant), ""}});
    const auto record = builder.CreateString(callers ? callers->text() : "");
    static_assert(sizeof(wire::Hash) == sizeof(BlockHash));
    const auto* const hashes = reinterpret_cast<const wire::Hash*>(of.hashes.view().data()) + content->first;
    const auto told_hashes = builder.CreateVectorOfStructs(hashes, content->count);
    flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> positions;
    if (of.place.positions)
      positions = builder.CreateVector(of.place.positions->data() + content->first, content->count);
    return wire::CreateContextResponse(builder, list, has_more, static_cast<std::uint64_t>(of.id), record,
                                       of.place.prefix_count, told_hashes, positions);
  });
}

void audit_kept(SessionCore& session, std::uint64_t request_id, const ContextDesk::View& view) {
  session.audit.answered(
      FrameType::kContext, request_id,
      fmt::format("ok kept={} wanted={}{}", view.kept_count, view.wanted_count,
                  view.kept_count < view.wanted_count ? fmt::format(" why='{}'", why_words(view.why)) : ""));
}

void list_contexts(SessionCore& session, const SessionCore::Frame& frame, const std::string& owner,
                   const std::string& after) {
  const TimePoint now = session.node.clock.now();
  // One more, to know whether others follow.
  auto views = session.node.store.with(
      &session.phases, [&](Store& store) { return store.list_contexts(owner, after, kContextsPerAnswer + 1, now); });
  const bool has_more = views.size() > kContextsPerAnswer;
  if (has_more) views.pop_back();
  session.audit.answered(FrameType::kContext, frame.header.request_id, fmt::format("ok count={}", views.size()));
  reply_contexts(session, frame, views, has_more, now);
}

void tell_context(SessionCore& session, const SessionCore::Frame& frame, const std::string& owner,
                  const std::string& name, std::size_t wanted_first) {
  TimePoint now{};
  const auto told = session.node.store.with(&session.phases, [&](Store& store) {
    now = session.node.clock.now();
    return store.tell_context(owner, name, now);
  });
  if (!told) return session.refuse(frame, told.error(), "context tell: no context '" + name + "'");
  const auto& [view, content] = *told;
  const std::size_t first = std::min(wanted_first, content.hashes.size());
  const Told part{content, first, std::min(kContextHashesPerAnswer, content.hashes.size() - first)};
  audit_kept(session, frame.header.request_id, view);
  reply_contexts(session, frame, {view}, first + part.count < content.hashes.size(), now, &part);
}

/// The part of an order that is in the request's lists.
ContextDesk::Order order_of(const wire::ContextRequest& request) {
  const auto hashes = hashes_of(request.hashes());
  const auto counts = numbers_of(request.chain_counts());
  ContextDesk::Order order{.hashes = {hashes.begin(), hashes.end()},
                           .chain_counts = {counts.begin(), counts.end()},
                           .place = {.prefix_count = request.prefix_blocks()}};
  if (request.positions() != nullptr) {
    const auto positions = numbers_of(request.positions());
    order.place.positions = std::make_shared<const std::vector<std::uint32_t>>(positions.begin(), positions.end());
  }
  if (request.tags() != nullptr) {
    for (const flatbuffers::String* const tag : *request.tags()) order.tags.push_back(tag->str());
  }
  return order;
}

}  // namespace

std::uint64_t wall_us() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

void answer_context(SessionCore& session, SpaceDoor& door, const SessionCore::Frame& frame) {
  const auto* request = read_request<wire::ContextRequest>(session, frame);
  if (request == nullptr) return;
  const std::uint64_t id = frame.header.request_id;
  const auto act = static_cast<ContextAct>(request->act());
  if (act < ContextAct::kCreate || act > ContextAct::kTell)
    return session.refuse(frame, Errc::kUnsupported, fmt::format("context.act: {}, known here: 1..7", request->act()));
  const std::string what = std::string("context ") + act_name(act);
  if (const std::string wrong = wrong_text(*request, act); !wrong.empty())
    return session.refuse(frame, Errc::kBadRequest, what + ": " + wrong);
  const std::string name(said(request->name()));
  session.audit.on(FrameType::kContext, id,
                   std::string("context=") + act_name(act) + (name.empty() ? "" : " name='" + name + "'"));
  std::optional<ContextLife> life;
  if (act == ContextAct::kCreate || act == ContextAct::kExtend) {
    life = life_of(*request);
    if (!life) {
      return session.refuse(frame, Errc::kBadRequest,
                            fmt::format("{}: ttl_us: {}, until_us: {}; allowed is one of both, in the future and at "
                                        "most ten years away, and sliding only with ttl_us",
                                        what, request->ttl_us(), request->until_us()));
    }
  }
  std::optional<std::uint8_t> priority;
  if (request->priority() != kPriorityUnsaid) priority = request->priority();
  if (priority.value_or(0) > kContextPriorityMax) {
    return session.refuse(frame, Errc::kBadRequest,
                          fmt::format("{}: priority: {}, allowed are 0 to {}", what, *priority, kContextPriorityMax));
  }
  NodeContext& node = session.node;
  const std::string owner = session.access.grant().tenant;
  if (act == ContextAct::kList && name.empty())
    return list_contexts(session, frame, owner, std::string(said(request->after())));
  if (act == ContextAct::kTell) return tell_context(session, frame, owner, name, request->first());
  ContextDesk::Order order;
  if (act == ContextAct::kCreate) {
    if (node.draining) return session.refuse(frame, Errc::kDraining, "the node is shutting down");
    const OpenSpace* const space =
        door.find(frame, request->space(), request->namespace_check(), NamespaceKind::kChain);
    if (space == nullptr) return;
    order = order_of(*request);
    session.audit.on(FrameType::kContext, id,
                     fmt::format("namespace={} hashes={}", to_hex(space->shown_name.bytes), order.hashes.size()));
    order.owner = owner;
    order.name = name;
    order.space = space->id;
    order.life = *life;
    order.priority = priority.value_or(kContextPriorityDefault);
  }
  TimePoint now{};
  using Answered = Result<ContextDesk::View, Failure>;
  const auto view = node.store.with(&session.phases, [&](Store& store) -> Answered {
    now = node.clock.now();
    if (act == ContextAct::kCreate) return store.create_context(std::move(order), now);
    auto one = of_one(store, act, owner, name, life, priority, now);
    if (!one && one.error() == Errc::kNotFound) return Failure(one.error(), "no context '" + name + "'");
    if (!one) return Failure(one.error());
    return *std::move(one);
  });
  if (!view) return session.refuse(frame, view.error().code, what + ": " + view.error().text);
  audit_kept(session, id, *view);
  reply_contexts(session, frame, {*view}, false, now);
}

std::string context_news_text(const ContextDesk::News& news) {
  return fmt::format("context '{}'{} keeps {} of {} blocks: {}{}{}", printable(news.name),
                     news.owner.empty() ? "" : " of tenant '" + printable(news.owner) + "'", news.kept_count,
                     news.wanted_count, why_words(news.why),
                     news.lost_count > 0 ? fmt::format("; {} were dropped since it was created", news.lost_count) : "",
                     news.yielded_count > 0
                         ? fmt::format("; {} were given up for contexts of higher priority", news.yielded_count)
                         : "");
}

}  // namespace kv
