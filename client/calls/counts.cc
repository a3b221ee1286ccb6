// client/calls/counts.cc: touch, retain, unretain and drop: one request to each owner, one number back.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "client/client.h"
#include "client/core/client_core.h"

namespace kv {
namespace {

/// touch, retain, unretain, drop.
class CountCall final : public Call {
 public:
  Hashes hashes;
  std::uint64_t count = 0;
  bool until_restart = false;  ///< For drop.

 private:
  error_code send(CallSession& session) override {
    const LinkTerms& terms = session.terms();
    if (hashes.size() > terms.chain_blocks_max ||
        hashes.size() * sizeof(BlockHash) + kTableOverheadBytes > terms.table_bytes_max) {
      return Errc::kTooLarge;  // half a chain would be a different request
    }
    auto& builder = session.shared().new_request();
    const auto list = builder.CreateVectorOfStructs(wire_hashes(hashes), hashes.size());
    builder.Finish(wire::CreatePrefixRequest(builder, space_handle(), list, space_check()));
    if (type == FrameType::kTouch) {  // the others depend on the order of requests
      session.send_small(type, request_id(), builder, kSmallAnswerBytes);
    } else {
      session.send_frame(type, request_id(), builder);
    }
    return {};
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::CountResponse>(frame.table);
    if (response == nullptr) return std::string(frame_type_name(type)) + ": malformed";
    count = response->count();
    until_restart = response->until_restart();
    return {};
  }
};

/// Asks the owner of each chain, and sums up the answers. Errors: of the first that failed, after all were asked.
Async<DropResult> count(ClientCore& core, FrameType type, Space space, std::vector<OwnedChain> chains, TimePoint until,
                        CallControl control) {
  const CallInProgress in_progress(core.shared, type);
  CallBundle bundle(core.shared->executor, control);
  std::vector<CountCall> calls(chains.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].type = type;
    calls[i].hashes = chains[i].hashes;
    core.start(calls[i], chains[i].node, space, bundle, until);
  }
  co_await wait_all(bundle);
  DropResult sum;
  for (const CountCall& call : calls) {
    // A partial sum would pass for the whole. The other owners are done all the same.
    if (call.error()) {
      in_progress.done(call.error());
      co_return call.error();
    }
    sum.block_count += call.count;
    sum.until_restart = sum.until_restart || call.until_restart;
  }
  in_progress.done({});
  co_return sum;
}

/// Copies besides those of split(): of the chain's present root for touch and retain, of all places for unretain.
std::vector<OwnedChain> other_copies(const ClientCore& core, FrameType type, Space space, Hashes hashes) {
  if (!core.has_hot_roots() || core.find_space(space)->record.is_set()) return {};
  if (type == FrameType::kUnretain) return core.split_copies(space, hashes);
  std::vector<OwnedChain> copies;
  const Hashes root = hashes.first(core.hot_roots(space, hashes).now);
  if (root.empty()) return copies;
  const std::size_t primary = core.map->extents(hashes, root.size()).front().node;
  for (const std::size_t node : core.members) {
    if (node == primary) continue;
    OwnedChain& copy = copies.emplace_back();
    copy.node = node;
    copy.hashes = root;
  }
  return copies;
}

Async<std::size_t> count_prefix(ClientCore& core, FrameType type, Space space, Hashes hashes,
                                std::chrono::microseconds deadline, CallControl control) {
  if (const error_code refused = core.refuses(space, deadline, control)) co_return refused;
  if (hashes.empty()) co_return std::size_t{0};
  const TimePoint until = core.deadline_after(deadline);
  auto copies = other_copies(core, type, space, hashes);
  auto chains = core.split(space, hashes);
  const auto counted = co_await count(core, type, space, std::move(chains), until, control);
  error_code why = counted ? error_code() : counted.error();
  if (!copies.empty()) {
    // After the chain, even if that failed: blocks unretained before would be missing from its count. Copies are not
    // counted: the result is about the chain. A copy that a node could not keep or mark as used is one copy less; but
    // one that would stay kept for ever is an error.
    const auto done = co_await count(core, type, space, std::move(copies), until, control);
    if (!done && !why && type == FrameType::kUnretain) why = done.error();
  }
  if (why) co_return why;
  co_return counted->block_count;
}

}  // namespace

Async<std::size_t> Client::touch(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control) {
  return count_prefix(*core_, FrameType::kTouch, space, hashes, deadline, control);
}

Async<std::size_t> Client::retain(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control) {
  return count_prefix(*core_, FrameType::kRetain, space, hashes, deadline, control);
}

Async<std::size_t> Client::unretain(Space space, Hashes hashes, std::chrono::microseconds deadline,
                                    CallControl control) {
  return count_prefix(*core_, FrameType::kUnretain, space, hashes, deadline, control);
}

Async<DropResult> Client::drop(Space space, Hashes hashes, std::chrono::microseconds deadline, CallControl control) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(space, deadline, control)) co_return refused;
  std::vector<OwnedChain> chains;
  if (hashes.empty()) {  // the whole namespace, everywhere
    chains.resize(core.members.size());
    for (std::size_t i = 0; i < chains.size(); ++i) chains[i].node = core.members[i];
  } else {
    chains = core.split_copies(space, hashes);
    core.hot_sets.forget(hashes.back());
  }
  if (!hashes.empty() && !core.find_space(space)->record.is_set()) {
    // Blocks below the last one on other nodes become unreachable, and age out.
    const auto has_last = [&](const OwnedChain& chain) {
      return chain.position(chain.hashes.size() - 1) == hashes.size() - 1;
    };
    std::erase_if(chains, [&](const OwnedChain& chain) { return !has_last(chain); });
    KV_ASSERT(!chains.empty() && (chains.size() == 1 || core.has_hot_roots()));
  }
  const TimePoint until = core.deadline_after(deadline);
  const auto dropped = co_await count(core, FrameType::kDrop, space, std::move(chains), until, control);
  co_return dropped;
}

}  // namespace kv
