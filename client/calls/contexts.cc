// client/calls/contexts.cc: named contexts. Each node keeps its own blocks of a context under the same name,
// independently of other nodes; this file combines the parts into one context.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"
#include "client/client.h"
#include "client/core/client_core.h"
#include "transport/frames/frame.h"

namespace kv {
namespace {

constexpr std::size_t kContextTextMax = 1024;                              ///< Limit for texts in an answer.
constexpr std::size_t kContextsMax = 65536;                                ///< Listed per node.
constexpr std::size_t kToldBlocksMax = 1 << 20, kToldRecordMax = 1 << 16;  ///< Per context and node.

std::string told_text(const flatbuffers::String* text) {
  return text == nullptr ? "" : printable(text->string_view().substr(0, kContextTextMax));
}

std::chrono::microseconds told_time(std::uint64_t us) {
  return std::chrono::microseconds(std::min<std::uint64_t>(us, std::uint64_t{1} << 62));
}

class ContextCall final : public Call {
 public:
  ContextCall() { type = FrameType::kContext; }
  ContextAct act = ContextAct::kList;
  std::string_view name, after;
  std::vector<BlockHash> hashes;
  std::vector<std::uint32_t> chain_counts;
  std::vector<std::uint32_t> positions;  ///< Of `hashes`, in a prefix of prefix_blocks blocks.
  std::size_t prefix_blocks = 0;
  std::size_t first = 0;  ///< For kTell.
  ContextTime life;
  std::optional<std::uint8_t> priority;
  std::span<const std::string> tags;
  std::vector<NamedContext> contexts;
  bool has_more = false;
  /// Result of kTell.
  struct Told {
    std::uint64_t id = 0, prefix_blocks = 0;
    std::string record;
    std::vector<std::pair<std::uint32_t, BlockHash>> blocks;
  } told;

 private:
  error_code send(CallSession& session) override {
    const LinkTerms& terms = session.terms();
    std::size_t text_bytes = name.size() + after.size();
    for (const std::string& tag : tags) text_bytes += tag.size() + 16;
    const std::size_t bytes = hashes.size() * sizeof(BlockHash) + (chain_counts.size() + positions.size()) * 4 +
                              text_bytes + kTableOverheadBytes;
    if (hashes.size() > terms.chain_blocks_max || bytes > terms.table_bytes_max) return Errc::kTooLarge;
    auto& builder = session.shared().new_request();
    const auto named = name.empty() ? 0 : builder.CreateString(name.data(), name.size());
    const auto behind = after.empty() ? 0 : builder.CreateString(after.data(), after.size());
    const auto list = hashes.empty() ? 0 : builder.CreateVectorOfStructs(wire_hashes(hashes), hashes.size());
    const auto counts = chain_counts.size() < 2 ? 0 : builder.CreateVector(chain_counts);
    const bool is_in_order = positions.empty() || (positions.front() == 0 && positions.back() == positions.size() - 1);
    const auto places = is_in_order ? 0 : builder.CreateVector(positions);
    std::vector<flatbuffers::Offset<flatbuffers::String>> texts;
    for (const std::string& tag : tags) texts.push_back(builder.CreateString(tag));
    const auto tagged = texts.empty() ? 0 : builder.CreateVector(texts);
    wire::ContextRequestBuilder request(builder);
    request.add_act(static_cast<std::uint8_t>(act));
    if (!name.empty()) request.add_name(named);
    if (act == ContextAct::kCreate) {
      request.add_space(space_handle());
      request.add_namespace_check(space_check());
      request.add_hashes(list);
      if (chain_counts.size() >= 2) request.add_chain_counts(counts);
      if (!texts.empty()) request.add_tags(tagged);
      request.add_prefix_blocks(static_cast<std::uint32_t>(prefix_blocks));
      if (!is_in_order) request.add_positions(places);
    }
    if (life.ttl.count() > 0) request.add_ttl_us(static_cast<std::uint64_t>(life.ttl.count()));
    const auto until = std::chrono::duration_cast<std::chrono::microseconds>(life.until.time_since_epoch()).count();
    if (until > 0) request.add_until_us(static_cast<std::uint64_t>(until));
    request.add_sliding(life.is_sliding);
    if (!after.empty()) request.add_after(behind);
    if (priority) request.add_priority(*priority);
    request.add_first(static_cast<std::uint32_t>(first));
    return send_table(session, request.Finish());
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::ContextResponse>(frame.table);
    if (response == nullptr) return "context: malformed";
    has_more = response->more();
    contexts.clear();
    if (response->contexts() == nullptr) return act == ContextAct::kList ? "" : "context: none in the answer";
    if (response->contexts()->size() > kContextsPerAnswer) return "context: more than fit one answer";
    for (const wire::ContextStatus* const each : *response->contexts()) {
      if (each->name() == nullptr || each->kept_blocks() > each->wanted_blocks()) return "context: malformed";
      // Excludes NaN too: the values are summed up, and reported as whole numbers.
      if (!(each->stored_token_seconds() >= 0)) return "context: malformed";
      NamedContext& context = contexts.emplace_back();
      context.name = told_text(each->name());
      if (each->tags() != nullptr) {
        for (const flatbuffers::String* const tag : *each->tags()) context.tags.push_back(told_text(tag));
      }
      if (const auto* const id = each->namespace_id(); id != nullptr && id->size() == sizeof(NamespaceId))
        context.namespace_id = to_hex(std::as_bytes(std::span(id->data(), id->size())));
      context.model = told_text(each->model());
      context.block_size = each->block_size();
      context.wanted_blocks = each->wanted_blocks();
      context.kept_blocks = each->kept_blocks();
      context.kept_bytes = each->kept_bytes();
      if (each->why() > 0 && each->why() < kErrcLocal) context.why = static_cast<Errc>(each->why());
      context.lost_blocks = each->lost_blocks();
      context.yielded_blocks = each->yielded_blocks();
      context.priority = each->priority();
      context.is_sliding = each->sliding();
      context.ttl = told_time(each->ttl_us());
      context.created = told_time(each->created_us());
      context.expires = told_time(each->expires_us());
      context.used = told_time(each->used_us());
      context.written_tokens = each->written_tokens();
      context.read_tokens = each->read_tokens();
      context.stored_token_seconds = each->stored_token_seconds();
      context.is_warming = each->warming();
      if (each->looked()) {
        context.memory_blocks = each->memory_blocks();
        context.disk_blocks = each->disk_blocks();
      }
    }
    if (act != ContextAct::kList && contexts.size() != 1) return "context: one is due";
    if (has_more && contexts.empty()) return "context: no progress";
    return act == ContextAct::kTell ? read_told(*response) : "";
  }
  std::string read_told(const wire::ContextResponse& response) {
    if (response.hashes() == nullptr || response.record() == nullptr) return "context: malformed";
    const auto count = response.hashes()->size();
    if (count > kContextHashesPerAnswer || response.record()->size() > kToldRecordMax) return "context: too large";
    if (response.positions() != nullptr && response.positions()->size() != count) return "context: malformed";
    if (has_more && count == 0) return "context: no progress";
    told.id = response.context();
    told.prefix_blocks = response.prefix_blocks();
    told.record = response.record()->str();
    const auto* const names = reinterpret_cast<const BlockHash*>(response.hashes()->data());
    for (flatbuffers::uoffset_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::uint32_t>(first + i);
      told.blocks.emplace_back(response.positions() == nullptr ? at : response.positions()->Get(i), names[i]);
    }
    return {};
  }
};

void add_part(NamedContext& whole, const NamedContext& part) {
  whole.wanted_blocks += part.wanted_blocks;
  whole.kept_blocks += part.kept_blocks;
  whole.kept_bytes += part.kept_bytes;
  if (!whole.why) whole.why = part.why;
  whole.lost_blocks += part.lost_blocks;
  whole.yielded_blocks += part.yielded_blocks;
  whole.priority = std::min(whole.priority, part.priority);
  whole.created = std::min(whole.created, part.created);
  whole.expires = std::min(whole.expires, part.expires);
  whole.used = std::max(whole.used, part.used);
  whole.written_tokens += part.written_tokens;
  whole.read_tokens += part.read_tokens;
  whole.stored_token_seconds += part.stored_token_seconds;
  whole.is_warming = whole.is_warming || part.is_warming;
  const bool is_told = whole.memory_blocks && part.memory_blocks;
  whole.memory_blocks = is_told ? std::optional(*whole.memory_blocks + *part.memory_blocks) : std::nullopt;
  whole.disk_blocks = is_told ? std::optional(*whole.disk_blocks + *part.disk_blocks) : std::nullopt;
}

/// Combines the nodes' answers. kNotFound from a node is not a failure, unless all answer so.
Result<NamedContext> sum_up(std::span<const ContextCall> calls) {
  std::optional<NamedContext> whole;
  error_code why;
  for (const ContextCall& call : calls) {
    if (call.error() == Errc::kNotFound) continue;
    if (call.error() && !why) why = call.error();
    if (call.error() || call.contexts.empty()) continue;
    if (whole) {
      add_part(*whole, call.contexts.front());
    } else {
      whole = call.contexts.front();
    }
  }
  // The other nodes have applied the request all the same.
  if (why) return why;
  if (!whole) return error_code(Errc::kNotFound);
  return *std::move(whole);
}

/// Combines the parts of one context. `Node`: tell_context()'s record of a node.
template <class Node>
Result<ContextContent> put_together(std::vector<Node>& nodes) {
  ContextContent content;
  std::vector<std::pair<std::uint32_t, BlockHash>> blocks;
  bool is_first = true;
  for (Node& node : nodes) {
    if (!node.context) continue;
    if (std::exchange(is_first, false)) {
      content = {*node.context, node.told.record, node.told.prefix_blocks, {}};
    } else {
      if (node.told.record != content.record || node.told.prefix_blocks != content.prefix_blocks)
        return error_code(Errc::kMismatch);
      add_part(content.context, *node.context);
    }
    std::ranges::move(node.told.blocks, std::back_inserter(blocks));
  }
  if (is_first) return error_code(Errc::kNotFound);
  std::ranges::sort(blocks, {}, [](const auto& block) { return block.first; });
  for (const auto& [position, hash] : blocks) {
    if (position >= content.prefix_blocks || position > content.hashes.size()) break;
    if (position == content.hashes.size()) {
      content.hashes.push_back(hash);
    } else if (content.hashes[position] != hash) {  // two nodes disagree
      return error_code(Errc::kMismatch);
    }
  }
  return content;
}

/// Asks each of `nodes` for page after page, all at the same time, until none of them has more. ask(node, call) fills
/// in a request; hear(node, call) takes the answer, and may set has_more. An error from hear() ends all.
template <class Node, class Ask, class Hear>
asio::awaitable<error_code> ask_for_pages(ClientCore& core, std::vector<Node>& nodes, TimePoint until,
                                          CallControl control, Ask& ask, Hear& hear) {
  while (std::ranges::any_of(nodes, &Node::has_more)) {
    CallBundle bundle(core.shared->executor, control);
    std::vector<ContextCall> calls(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i].has_more) continue;
      ask(nodes[i], calls[i]);
      core.start(calls[i], nodes[i].number, bundle, until);
    }
    co_await wait_all(bundle);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!std::exchange(nodes[i].has_more, false)) continue;
      if (const error_code why = hear(nodes[i], calls[i])) co_return why;
    }
  }
  co_return error_code();
}

/// Sends the same request to each node.
Async<NamedContext> ask_each(ClientCore& core, ContextAct act, std::string_view name, ContextTime life,
                             std::optional<std::uint8_t> priority, std::chrono::microseconds deadline,
                             CallControl control) {
  if (const error_code refused = core.refuses(deadline, control)) co_return refused;
  if (name.empty()) co_return error_code(Errc::kBadRequest);
  const CallInProgress in_progress(core.shared);
  CallBundle bundle(core.shared->executor, control);
  std::vector<ContextCall> calls(core.members.size());
  for (ContextCall& call : calls) {
    call.act = act;
    call.name = name;
    call.life = life;
    call.priority = priority;
  }
  core.start_on_each(calls, bundle, core.deadline_after(deadline));
  co_await wait_all(bundle);
  co_return sum_up(calls);
}

}  // namespace

/// Calls every node: owners of some of the chain keep their blocks; the others delete their context of that name, which
/// belongs to another chain, or to this one under another map.
Async<NamedContext> Client::create_context(Space space, Hashes hashes, ContextOptions options) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(space, options.deadline, options.control)) co_return refused;
  if (core.find_space(space)->record.is_set()) co_return error_code(Errc::kUnsupported);
  if (hashes.empty() || options.name.empty()) co_return error_code(Errc::kBadRequest);
  const CallInProgress in_progress(core.shared);
  CallBundle bundle(core.shared->executor, options.control);
  std::vector<ContextCall> calls(core.members.size());
  for (ContextCall& call : calls) {
    call.act = ContextAct::kDelete;
    call.name = options.name;
  }
  for (const OwnedChain& chain : core.split(space, hashes)) {
    const auto at = std::ranges::find(core.members, chain.node);
    KV_ASSERT(at != core.members.end());
    ContextCall& call = calls[static_cast<std::size_t>(at - core.members.begin())];
    call.act = ContextAct::kCreate;
    call.space = static_cast<std::uint32_t>(space);
    call.life = options.life;
    call.priority = options.priority;
    call.tags = options.tags;
    call.hashes.insert(call.hashes.end(), chain.hashes.begin(), chain.hashes.end());
    call.chain_counts.push_back(static_cast<std::uint32_t>(chain.hashes.size()));
    call.prefix_blocks = hashes.size();
    for (std::size_t i = 0; i < chain.hashes.size(); ++i)
      call.positions.push_back(static_cast<std::uint32_t>(chain.position(i)));
  }
  core.start_on_each(calls, bundle, core.deadline_after(options.deadline));
  co_await wait_all(bundle);
  for (ContextCall& call : calls) {
    if (call.act == ContextAct::kDelete) call.contexts.clear();  // the deleted content does not count
  }
  co_return sum_up(calls);
}

Async<NamedContext> Client::extend_context(std::string_view name, ContextTime life, std::chrono::microseconds deadline,
                                           CallControl control, std::optional<std::uint8_t> priority) {
  return ask_each(*core_, ContextAct::kExtend, name, life, priority, deadline, control);
}

Async<NamedContext> Client::delete_context(std::string_view name, std::chrono::microseconds deadline,
                                           CallControl control) {
  return ask_each(*core_, ContextAct::kDelete, name, {}, {}, deadline, control);
}

Async<NamedContext> Client::warm_context(std::string_view name, std::chrono::microseconds deadline,
                                         CallControl control) {
  return ask_each(*core_, ContextAct::kWarm, name, {}, {}, deadline, control);
}

Async<NamedContext> Client::stop_warming_context(std::string_view name, std::chrono::microseconds deadline,
                                                 CallControl control) {
  return ask_each(*core_, ContextAct::kStopWarming, name, {}, {}, deadline, control);
}

Async<ContextContent> Client::tell_context(std::string_view name, std::chrono::microseconds deadline,
                                           CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(deadline, control)) co_return refused;
  if (name.empty()) co_return error_code(Errc::kBadRequest);
  const CallInProgress in_progress(core.shared);
  const TimePoint until = core.deadline_after(deadline);
  struct Node {
    std::size_t number;
    bool has_more = true;
    std::optional<NamedContext> context;
    ContextCall::Told told;
  };
  std::vector<Node> nodes;
  for (const std::size_t node : core.members) nodes.push_back({.number = node, .context = {}, .told = {}});
  const auto ask = [&](const Node& node, ContextCall& call) {
    call.act = ContextAct::kTell;
    call.name = name;
    call.first = node.told.blocks.size();
  };
  const auto hear = [](Node& node, ContextCall& call) -> error_code {
    if (call.error() == Errc::kNotFound && !node.context) return {};  // it has no part
    if (call.error()) return call.error() == Errc::kNotFound ? error_code(Errc::kMismatch) : call.error();
    const bool is_same = !node.context || (node.told.id == call.told.id && node.told.record == call.told.record &&
                                           node.told.prefix_blocks == call.told.prefix_blocks);
    if (!is_same) return Errc::kMismatch;
    auto blocks = std::move(node.told.blocks);
    std::ranges::move(call.told.blocks, std::back_inserter(blocks));
    if (blocks.size() > kToldBlocksMax) return Errc::kTooLarge;
    node.told = std::move(call.told);
    node.told.blocks = std::move(blocks);
    node.context = std::move(call.contexts.front());
    node.has_more = call.has_more;
    return {};
  };
  const error_code why = co_await ask_for_pages(core, nodes, until, control, ask, hear);
  if (why) co_return why;
  co_return put_together(nodes);
}

/// A node that fails midway counts as silent.
Async<ContextList> Client::list_contexts(std::string_view name, std::chrono::microseconds deadline,
                                         CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(deadline, control)) co_return refused;
  const CallInProgress in_progress(core.shared);
  const TimePoint until = core.deadline_after(deadline);
  struct Node {
    std::size_t number;
    std::string name;
    std::vector<NamedContext> contexts;
    bool has_more = true;
    error_code why;
  };
  std::vector<Node> nodes;
  for (const std::size_t node : core.members)
    nodes.push_back({.number = node, .name = core.links[node]->config().name, .contexts = {}, .why = {}});
  const auto ask = [&](const Node& node, ContextCall& call) {
    call.name = name;
    if (!node.contexts.empty()) call.after = node.contexts.back().name;
  };
  const auto hear = [](Node& node, ContextCall& call) -> error_code {
    node.why = call.error() == Errc::kNotFound ? error_code() : call.error();
    if (call.error()) return {};
    auto& page = call.contexts;
    // Without ascending names a node would be asked for ever.
    if (!page.empty() && !node.contexts.empty() && page.front().name <= node.contexts.back().name) return {};
    node.has_more = call.has_more && node.contexts.size() < kContextsMax;
    std::ranges::move(page, std::back_inserter(node.contexts));
    return {};
  };
  (void)co_await ask_for_pages(core, nodes, until, control, ask, hear);
  ContextList list;
  std::map<std::string, NamedContext> by_name;
  for (Node& node : nodes) {
    if (node.why) {
      list.silent.emplace_back(node.name, node.why);
      continue;
    }
    for (NamedContext& part : node.contexts) {
      const auto [place, is_new] = by_name.try_emplace(part.name, part);
      if (!is_new) add_part(place->second, part);
    }
  }
  for (auto& [of, context] : by_name) list.contexts.push_back(std::move(context));
  co_return list;
}

}  // namespace kv
