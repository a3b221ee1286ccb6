#include "store/node/session/requests/misses.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "index/record_differences.h"
#include "store/node/session/core/session_wire.h"

namespace kv {
namespace {

constexpr std::size_t kSpacesLookedAt = 16384;
constexpr std::size_t kOthersTold = 4, kDifferencesTold = 16, kValueBytesTold = 128;
/// With more differences a namespace was hardly meant to be the same.
constexpr std::size_t kTwinDifferencesMax = 3;

/// A namespace that may have been meant by the writer or the reader.
struct Twin {
  LookDesk::SpaceLook look;
  std::vector<FieldDifference> differences;
};

flatbuffers::Offset<flatbuffers::String> told(FlatBufferBuilder& builder, const FieldDifference& of,
                                              const std::string& value) {
  if (value.empty() || of.is_secret()) return 0;
  return builder.CreateString(value.data(), std::min(value.size(), kValueBytesTold));
}

flatbuffers::Offset<wire::OtherSpace> build(FlatBufferBuilder& builder, const Twin& twin) {
  std::vector<flatbuffers::Offset<wire::FieldDifference>> differs;
  for (const FieldDifference& each : twin.differences) {
    if (differs.size() == kDifferencesTold) break;
    const auto field = builder.CreateString(each.field);
    const auto here = told(builder, each, each.here), there = told(builder, each, each.there);
    differs.push_back(wire::CreateFieldDifference(builder, field, here, there));
  }
  const auto name = create_bytes(builder, twin.look.record->unsalted().id().bytes);
  const auto list = builder.CreateVector(differs);
  const SpaceTraffic& traffic = twin.look.traffic;
  return wire::CreateOtherSpace(builder, name, twin.look.has_chain, twin.look.block_count, traffic.stored_blocks,
                                traffic.lookups, traffic.empty_lookups, list);
}

std::uint64_t microseconds_of(Duration time) {
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0));
}

}  // namespace

struct Misses::Question {
  std::uint64_t request_id = 0;
  NamespaceId stored_name;       ///< Of the namespace in question.
  std::string text, owner;       ///< Of its record, without the salt.
  std::vector<BlockHash> chain;  ///< Up to the missing block.
  bool is_of_set = false;
  bool sees_all = false;  ///< Of all owners; otherwise only of this namespace's owner.
  LookDesk::Miss miss;
  std::vector<Twin> twins = {};  ///< The likeliest first.

  void note(std::vector<LookDesk::SpaceLook> looks);
};

/// Keeps namespaces that have the block; and, if the namespace in question is unused, used ones with few differences.
void Misses::Question::note(std::vector<LookDesk::SpaceLook> looks) {
  for (LookDesk::SpaceLook& each : looks) {
    const bool is_used = each.traffic.stored_blocks > 0 || each.block_count > 0;
    if (each.name == stored_name || !(each.has_chain || (miss.traffic.stored_blocks == 0 && is_used))) continue;
    const std::size_t count_max = each.has_chain ? kDifferencesTold : kTwinDifferencesMax;
    auto differences = record_differences(text, each.record->unsalted_text(), count_max);
    if (differences.empty()) continue;  // of an earlier secret
    if (!each.has_chain && differences.size() > kTwinDifferencesMax) continue;
    twins.push_back({std::move(each), std::move(differences)});
  }
  // Among equals those without lookups come first: their writers store in vain.
  std::ranges::sort(twins, {}, [](const Twin& twin) {
    return std::tuple(!twin.look.has_chain, twin.look.traffic.lookups > 0, twin.differences.size(),
                      ~twin.look.block_count, twin.look.name);
  });
  if (twins.size() > kOthersTold) twins.resize(kOthersTold);
}

void Misses::answer_why(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes) {
  NodeContext& node = session_.node;
  auto miss = node.store.with(&session_.phases,
                              [&](Store& store) { return store.explain(space.id, hashes, node.clock.now()); });
  if (!miss) {
    return session_.refuse(
        frame, miss.error(),
        "match: " + miss.error().message() + " (" + count_text("hashes", hashes.size(), node.chain_blocks_max) + ")");
  }
  if (miss->disk_block_count > 0 && (node.disk_worker == nullptr || !node.disk_worker->can_read())) {
    miss->disk_block_count = 0;
    miss->why = MissKind::kDiskOff;
  }
  const std::size_t found_count = miss->memory_block_count + miss->disk_block_count;
  auto question = std::make_shared<Question>();
  question->request_id = frame.header.request_id;
  question->miss = *miss;
  // A namespace in which longer chains are found is not mistaken for another.
  const bool has_look =
      miss->why != MissKind::kUnknown && miss->why != MissKind::kBeingStored && found_count < LookDesk::kLookedForMax;
  const auto record =
      has_look ? node.store.with([&](Store& store) { return store.find_namespace(space.id); }) : nullptr;
  if (record == nullptr) return answer(*question);
  if (waiting_.size() >= node.limits->requests_max)
    return session_.refuse(frame, Errc::kBusy,
                           "match: " + count_text("whys in flight", waiting_.size(), node.limits->requests_max));
  const AccessGrant& grant = session_.access.grant();
  question->stored_name = space.stored_name;
  question->text = record->unsalted_text();
  question->owner = record->owner();
  question->is_of_set = record->is_set();
  const auto missed = question->is_of_set ? hashes.subspan(found_count, 1) : hashes.first(found_count + 1);
  question->chain.assign(missed.begin(), missed.end());
  question->sees_all = grant.tenant.empty() && has_right(grant.roles, Right::kObserve);
  waiting_.push_back(std::move(question));
  if (waiting_.size() > 1) return;
  const auto session = session_.shared_from_this();
  asio::co_spawn(session_.executor, look(session, *this, SessionJob(session)), asio::detached);
}

/// Answers the questions one by one.
asio::awaitable<void> Misses::look(std::shared_ptr<SessionCore> session, Misses& self,
                                   [[maybe_unused]] SessionJob job) {
  while (!self.waiting_.empty()) {
    const std::shared_ptr<Question> question = self.waiting_.front();
    std::optional<NamespaceId> after;
    bool has_more = true;
    for (std::size_t looked = 0; has_more && looked < kSpacesLookedAt && !session->is_ending;
         looked += LookDesk::kLookedInPerCall) {
      if (looked > 0) co_await asio::post(session->executor, asio::use_awaitable);  // others get a turn
      const std::string* const owner = question->sees_all ? nullptr : &question->owner;
      std::vector<LookDesk::SpaceLook> looks;
      has_more = session->node.store.with([&](Store& store) {
        return store.look_in_spaces(question->is_of_set, question->chain, owner, after, looks);
      });
      question->note(std::move(looks));
    }
    self.waiting_.pop_front();
    if (session->is_ending) continue;
    self.answer(*question);
    session->writer.flush();
  }
}

void Misses::answer(const Question& question) {
  const LookDesk::Miss& miss = question.miss;
  session_.replies.reply(FrameType::kMatch, question.request_id, 0, [&](FlatBufferBuilder& builder) {
    flatbuffers::Offset<wire::MissReason> reason;
    const bool says_why = miss.why != MissKind::kUnknown;
    if (says_why) {
      std::vector<flatbuffers::Offset<wire::OtherSpace>> others;
      for (const Twin& twin : question.twins) others.push_back(build(builder, twin));
      const auto list = builder.CreateVector(others);
      const SpaceTraffic& own = miss.traffic;
      reason = wire::CreateMissReason(builder, static_cast<std::uint8_t>(miss.why), microseconds_of(miss.left),
                                      microseconds_of(miss.idle), microseconds_of(miss.remembers), own.stored_blocks,
                                      own.lookups, own.empty_lookups, list);
    }
    wire::MatchResponseBuilder response(builder);
    response.add_host_blocks(static_cast<std::uint32_t>(miss.memory_block_count));
    response.add_disk_blocks(static_cast<std::uint32_t>(miss.disk_block_count));
    response.add_epoch(session_.node.cluster.epoch());
    if (says_why) response.add_reason(reason);
    return response.Finish();
  });
}

}  // namespace kv
