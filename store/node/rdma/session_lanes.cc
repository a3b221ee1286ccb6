#include "store/node/rdma/session_lanes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"
#include "transport/frames/frame_message.h"

namespace kv {

using verbs::Direction;
using verbs::Stretch;
using verbs::VerbsMover;

/// A connected queue pair, counted against the node's limit.
struct SessionLanes::Lane {
  std::shared_ptr<DeviceLoop> loop;
  std::shared_ptr<VerbsMover> mover;
  bool is_up = false;
  bool is_substitute = false;  ///< On another device than the lane's own.
};

struct SessionLanes::Moving {
  Moving(SessionLanes& of, std::shared_ptr<bool> is_alive) : lanes(of), alive(std::move(is_alive)) {}

  SessionLanes& lanes;
  std::shared_ptr<bool> alive;  ///< Whether `lanes` still exists.
  Owner owner;
  std::function<void(const Outcome&)> ended;
  Outcome outcome;
  std::size_t left = 0;

  void lane_ended(std::uint32_t lane, error_code error) {
    if (error) {
      if (error != Errc::kCancelled) outcome.broken |= 1u << lane;
      // The error that broke a lane says more than the stop of the others.
      if (!outcome.error || outcome.error == Errc::kCancelled) outcome.error = error;
    }
    if (*alive) lanes.sweep();
    if (--left > 0) return;
    owner.reset();
    ended(outcome);
  }
};

/// A queue pair on its way to becoming a lane.
struct SessionLanes::Attempt {
  Answer answer;
  std::optional<VerbsNode::ConnectTurn> turn;
  std::size_t device_index = 0;
  bool is_substitute = false;
  std::shared_ptr<NodeDevice> device;
  std::optional<verbs::Attachment> attachment;
  std::shared_ptr<DeviceLoop> loop;
  std::shared_ptr<VerbsMover> mover;  ///< Either this or `messages`.
  std::shared_ptr<verbs::VerbsMessages> messages;
  verbs::QueuePairAddress peer;
  verbs::Path path;

  /// Tries the device `after` places behind the lane's own.
  void attach(VerbsNode& node, std::size_t after) {
    if (!turn) return;  // the answer says why
    const std::size_t index = (device_index + after) % node.device_count();
    auto open = node.device(index);
    auto attached = open ? (*open)->open.attach() : Result<verbs::Attachment, Failure>(open.error());
    if (attached) {
      device_index = index;
      device = std::move(*open);
      attachment = std::move(*attached);
      is_substitute = after > 0;
      return;
    }
    const Failure failure = attached.error();
    if (open && verbs::is_gone(failure.code)) node.leave_out(index, **open, failure.code.message());
    if (after == 0) answer.why = failure.text;
  }

  bool is_messages() const { return answer.message_count > 0; }
  verbs::QueuePair* pair() const { return mover ? &mover->queue_pair() : messages ? &messages->queue_pair() : nullptr; }
};

SessionLanes::SessionLanes(std::shared_ptr<VerbsThread> thread, asio::any_io_executor executor, Listener listener)
    : thread_(std::move(thread)),
      executor_(std::move(executor)),
      listener_(std::move(listener)),
      lanes_(thread_->node().config().lane_count_max) {
  KV_ASSERT(lanes_.size() >= 1 && lanes_.size() <= 32);
}

SessionLanes::~SessionLanes() {
  fail_all();
  *alive_ = false;
}

/// Three steps on two threads. Attaching asks the kernel and connecting waits for the network, so both run on the
/// node's slow threads; in between, queue pairs are made on the session's own thread, whose completion queue they use.
/// The session may end during any step: `alive_` tells, and the attempts then release their resources.
void SessionLanes::connect(std::vector<Offer> offers, std::function<void(std::vector<Answer>)> done) {
  KV_ASSERT(!is_connecting_);  // one connect at a time: an attempt must not replace a lane of another one
  VerbsNode& node = thread_->node();
  auto attempts = std::make_shared<std::vector<Attempt>>();
  for (const Offer& offer : offers) {
    KV_ASSERT(offer.lane < lanes_.size() || (offer.lane == message_lane() && offer.message_count > 0));
    if (offer.lane == message_lane()) {
      message_lane_.reset();
      message_loop_.reset();
    } else {
      Lane& lane = lanes_[offer.lane];
      if (lane.mover) lane.mover->fail(asio::error::operation_aborted);  // the client has ended its own side
      sweep();
      lane = {};
    }
    Attempt& attempt = attempts->emplace_back();
    attempt.answer.lane = offer.lane;
    if (auto turn = node.take_connect_turn()) {
      attempt.turn = std::move(*turn);
    } else {
      attempt.answer.why = turn.error().text;
    }
    attempt.answer.message_count = std::min(offer.message_count, node.config().message_count_max);
    attempt.device_index = node.device_of(offer.message_count > 0 ? 0 : offer.lane);
    attempt.peer = offer.peer;
  }
  is_connecting_ = true;
  // A substitute is tried only if the client would have no lane at all: lanes on one device share its link.
  const auto attach_all = [attempts, &node, may_substitute = may_substitute_ && up() == 0] {
    const auto has_lane = [&] {
      return std::ranges::any_of(*attempts, [](const Attempt& each) { return each.attachment && !each.is_messages(); });
    };
    for (Attempt& each : *attempts) each.attach(node, 0);
    for (std::size_t after = 1; may_substitute && after < node.device_count() && !has_lane(); ++after) {
      for (Attempt& each : *attempts) {
        if (!each.is_messages()) each.attach(node, after);
      }
    }
  };
  node.slow_calls().run(attach_all, executor_, [this, alive = alive_, attempts, done = std::move(done)] {
    if (!*alive) return done({});
    for (Attempt& each : *attempts) {
      if (each.attachment) make(each);
    }
    connect_made(attempts, done);
  });
}

void SessionLanes::connect_made(std::shared_ptr<std::vector<Attempt>> attempts,
                                std::function<void(std::vector<Answer>)> done) {
  VerbsNode& node = thread_->node();
  const auto connect_all = [attempts] {
    for (Attempt& each : *attempts) {
      if (each.pair() == nullptr) continue;
      const auto connected = each.pair()->connect(each.peer, each.path);
      if (connected) continue;
      each.answer.end.reset();
      each.answer.why = connected.error().text;
    }
  };
  node.slow_calls().run(connect_all, executor_, [this, alive = alive_, attempts, done = std::move(done), &node] {
    std::vector<Answer> answers;
    for (Attempt& each : *attempts) {
      if (*alive && each.is_substitute && !each.answer.end) may_substitute_ = false;
      if (*alive && each.answer.end) {
        ++node.counters().lanes_connected;
        if (each.messages) {
          message_lane_ = std::move(each.messages);
          message_loop_ = std::move(each.loop);
          message_count_max_ = each.answer.message_count;
        } else {
          each.mover->on_gone([this, alive, mover = each.mover.get()] {
            if (*alive) let_go(mover);
          });
          lanes_[each.answer.lane] = {std::move(each.loop), std::move(each.mover), true, each.is_substitute};
          ++node.counters().lanes;
        }
      } else if (!each.answer.end) {
        ++node.counters().lanes_refused;
      }
      each.mover.reset();
      each.messages.reset();
      answers.push_back(std::move(each.answer));
    }
    if (*alive) is_connecting_ = false;
    done(std::move(answers));
  });
}

/// Makes the queue pair and the address for the client, or sets the answer's reason. Requires an attachment.
void SessionLanes::make(Attempt& attempt) {
  VerbsNode& node = thread_->node();
  Answer& answer = attempt.answer;
  auto loop_of_device = thread_->loop(attempt.device_index, attempt.device);
  if (!loop_of_device) {
    answer.why = loop_of_device.error().text;
    return;
  }
  attempt.loop = std::move(*loop_of_device);
  verbs::ProtectionDomain& domain = *attempt.device->open.domain;
  verbs::CompletionLoop& loop = attempt.loop->loop();
  if (!node.take_queue_pair()) {
    answer.why = fmt::format("queue pairs: the node's limit of {} is reached", node.config().queue_pair_count_max);
    return;
  }
  const VerbsNode::Peer peer = VerbsNode::peer_of(*attempt.attachment, attempt.peer);
  // A second lane to the same client queue pair would send into the first one's packet sequence and break it.
  if (!node.take_peer(peer)) {
    node.give_queue_pair();
    answer.why = fmt::format("end: queue pair {}, a lane is connected to it", attempt.peer.number);
    return;
  }
  // Returns the reserved counts; runs before the loop of the queue pair ends.
  const auto end = [&node, on = attempt.loop, peer](auto* each) {
    delete each;
    node.give_queue_pair();
    node.give_peer(peer);
  };
  std::optional<Failure> failure;
  if (attempt.is_messages()) {
    auto made = verbs::VerbsMessages::create(domain, loop.queue(),
                                             {.count = answer.message_count,
                                              .bytes_max = kMessageBytesMax,
                                              .write_count_max = kCargoStretchesMax,
                                              .timeout = node.config().move_timeout,
                                              .port = attempt.attachment->port});
    if (made) {
      attempt.messages = std::shared_ptr<verbs::VerbsMessages>(made->release(), end);
      attempt.messages->attach(loop, node.clock(), listener_.on_message, [this, alive = alive_](error_code why) {
        if (!*alive) return;
        ++thread_->node().counters().lanes_broken;
        listener_.on_broken(message_lane(), why);
      });
    } else {
      failure = made.error();
    }
  } else {
    verbs::MoverOptions options = node.config().mover;
    options.port = attempt.attachment->port;
    auto made = VerbsMover::create(loop, node.clock(), domain, options);
    if (made) {
      attempt.mover = std::shared_ptr<VerbsMover>(made->release(), end);
    } else {
      failure = made.error();
    }
  }
  if (failure) {
    node.give_queue_pair();
    node.give_peer(peer);
    answer.why = failure->text;
    return;
  }
  const std::uint32_t first_psn = verbs::random_psn();
  attempt.path = path_to(*attempt.attachment, first_psn, attempt.peer);
  answer.end = address_of(*attempt.attachment, attempt.pair()->number(), first_psn);
}

/// Notices broken lanes. A mover breaks by itself, so sweep() runs after each move and before lanes are counted or
/// replaced. Each break is counted and reported once.
void SessionLanes::sweep() {
  auto& counters = thread_->node().counters();
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (!lane.is_up || !lane.mover->is_broken()) continue;
    lane.is_up = false;
    --counters.lanes;
    if (lane.mover->broken() == asio::error::operation_aborted) continue;  // ended by this node
    if (lane.is_substitute) may_substitute_ = false;
    ++counters.lanes_broken;
    listener_.on_broken(i, lane.mover->broken());
  }
}

/// Frees a broken lane at once: an idle client does not offer its lanes again, and slots and device must not wait.
void SessionLanes::let_go(const VerbsMover* mover) {
  sweep();
  for (Lane& lane : lanes_) {
    if (lane.mover.get() == mover) lane = {};
  }
}

std::uint32_t SessionLanes::up() const {
  std::uint32_t up = 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].is_up && !lanes_[i].mover->is_broken()) up |= 1u << i;
  }
  return up;
}

/// Splits a placement into stretches at the ends of arena slices and region slices: each slice has its own key, and a
/// work request takes one key on either side. The region's slices adjoin in order; the request lies in the region.
std::vector<Stretch> SessionLanes::stretches(const Placement& placement, std::span<const RemoteSlice> region,
                                             std::size_t lane, const verbs::RegisteredMemory& arena) {
  std::vector<Stretch> all;
  const auto after = std::ranges::upper_bound(region, placement.region_offset, {}, &RemoteSlice::offset);
  KV_ASSERT(after != region.begin());  // the first slice begins at 0
  auto slice = static_cast<std::size_t>(after - region.begin()) - 1;
  std::uint64_t in_slice = placement.region_offset - region[slice].offset;
  for (std::size_t at = 0; at < placement.slot.size();) {
    KV_ASSERT(slice < region.size());
    const RemoteSlice& to = region[slice];
    KV_ASSERT(lane < to.rkeys.size() && in_slice < to.bytes);  // before a work request is made of it
    const std::uint64_t left = std::min<std::uint64_t>(placement.slot.size() - at, to.bytes - in_slice);
    const auto local = arena.within_slice(placement.slot.data() + at, std::min<std::uint64_t>(left, 1u << 31));
    all.push_back({local, arena.lkey(/*device=*/0, local.data()), to.address + in_slice, to.rkeys[lane]});
    at += local.size();
    in_slice += local.size();
    if (in_slice == to.bytes) ++slice, in_slice = 0;
  }
  return all;
}

void SessionLanes::move(Direction direction, std::span<const Placement> placements, std::span<const RemoteSlice> region,
                        std::uint32_t lanes, Owner owner, std::function<void(const Outcome&)> ended) {
  std::vector<std::uint32_t> usable;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (((lanes & up()) >> lane & 1u) != 0) usable.push_back(lane);
  }
  KV_ASSERT(!usable.empty() && !placements.empty());
  // Whole blocks are dealt out in turn, and the turn continues from call to call, so that small calls use all lanes.
  std::vector<std::vector<Stretch>> by_lane(usable.size());
  for (const Placement& placement : placements) {
    const std::size_t which = turn_++ % usable.size();
    const auto more = stretches(placement, region, usable[which], *lanes_[usable[which]].loop->device()->arena);
    by_lane[which].insert(by_lane[which].end(), more.begin(), more.end());
  }
  const auto moving = std::make_shared<Moving>(*this, alive_);
  moving->owner = std::move(owner);
  moving->ended = std::move(ended);
  moving->left = static_cast<std::size_t>(
      std::ranges::count_if(by_lane, [](const std::vector<Stretch>& each) { return !each.empty(); }));
  const TimePoint deadline = thread_->node().clock().now() + thread_->node().config().move_timeout;
  for (std::size_t i = 0; i < usable.size(); ++i) {
    if (by_lane[i].empty()) continue;
    asio::co_spawn(executor_,
                   move_on(lanes_[usable[i]].mover, direction, std::move(by_lane[i]), deadline, moving, usable[i]),
                   BorderOf{NodeThread::kIo});
  }
}

asio::awaitable<void> SessionLanes::move_on(std::shared_ptr<VerbsMover> mover, Direction direction,
                                            std::vector<Stretch> stretches, TimePoint deadline,
                                            std::shared_ptr<Moving> moving, std::uint32_t lane) {
  std::vector<std::size_t> one_segment{stretches.size()};
  Owner owner = moving->owner;
  const auto moved = co_await mover->move(direction, std::move(stretches), std::move(one_segment), std::move(owner),
                                          deadline, nullptr);
  moving->lane_ended(lane, moved ? error_code() : moved.error());
}

std::vector<Stretch> SessionLanes::stretches_before_message(std::span<const Placement> placements,
                                                            std::span<const RemoteSlice> region) const {
  std::vector<Stretch> all;
  for (const Placement& placement : placements) {
    const auto more = stretches(placement, region, /*lane=*/0, *message_loop_->device()->arena);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

/// Writes the cargo before the message, on the same queue pair: the client sees the message only after the bytes.
bool SessionLanes::send_message(std::span<const std::byte> message, Cargo cargo) {
  if (!message_lane_) return false;
  const auto sent = message_lane_->send(message, cargo.stretches, std::move(cargo.owner));
  if (sent) ++thread_->node().counters().messages;
  return sent.has_value();
}

void SessionLanes::stop(OwnerId owner) {
  for (const Lane& lane : lanes_) {
    if (lane.mover) lane.mover->stop(owner);
  }
}

void SessionLanes::fail_all() {
  for (const Lane& lane : lanes_) {
    if (lane.mover) lane.mover->fail(asio::error::operation_aborted);
  }
  if (message_lane_) message_lane_->fail();
  sweep();
}

}  // namespace kv
