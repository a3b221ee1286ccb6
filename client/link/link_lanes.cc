#include "client/link/link_lanes.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "transport/frames/frame_message.h"
#include "transport/verbs/verbs_wire.h"

namespace kv {
namespace {

/// For verbs_connect: the node resolves our address, perhaps after those of others.
constexpr Duration kConnectLimit = 10s;
constexpr std::uint32_t kAll = ~0u;  ///< All lanes, the message lane included.

}  // namespace

/// Delivers the messages of one lane. Its coroutine ends a little later than the lane.
struct LinkLanes::MessageLoop {
  MessageLoop(const asio::any_io_executor& executor, std::shared_ptr<VerbsLender::Open> of,
              std::unique_ptr<verbs::CompletionQueue> queue)
      : open(std::move(of)), loop(executor, std::move(queue)) {}

  std::shared_ptr<VerbsLender::Open> open;
  verbs::CompletionLoop loop;

  /// Runs until the loop is stopped. An error: the device's completions have stopped.
  static Async<void> run(std::shared_ptr<MessageLoop> self) { co_return co_await self->loop.run(); }
};

/// One queue pair and its parts. Owned by the other thread while that makes or connects the pair.
struct LinkLanes::Lane {
  ~Lane() {
    messages.reset();
    if (loop) loop->loop.stop();
  }

  std::shared_ptr<VerbsLender::Open> open;
  std::uint32_t number = 0, message_count = 0;
  /// For blocks it stays empty, since only the node posts. For messages `loop` takes it.
  std::unique_ptr<verbs::CompletionQueue> queue;
  std::shared_ptr<MessageLoop> loop;
  std::unique_ptr<verbs::QueuePair> blocks;        ///< Either this
  std::unique_ptr<verbs::VerbsMessages> messages;  ///< or this.
  std::optional<verbs::Attachment> attachment;     ///< Once there is a queue pair.
  verbs::QueuePairAddress own, peer;
  verbs::Path path;
  bool is_connected = false;
  bool is_cut = false;  ///< While it was connected.
  TimePoint since{};    ///< When it came up.
  std::string why;

  /// The message lane is on the device of lane 0, whose keys the node uses for blocks right before a message.
  const verbs::OpenDevice& device() const { return open->devices[open->device_of(message_count > 0 ? 0 : number)]; }
  verbs::QueuePair* pair() const { return messages ? &messages->queue_pair() : blocks.get(); }
  void drop_pair() {
    blocks.reset();
    messages.reset();
  }
};

/// Offers the queue pairs to the node and asks for its own.
class LinkLanes::ConnectCall final : public Call {
 public:
  explicit ConnectCall(LinkLanes& lanes) : lanes_(lanes) { type = FrameType::kVerbsConnect; }

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    std::vector<flatbuffers::Offset<wire::LaneOffer>> offers;
    for (const auto& lane : lanes_.attempt_) {
      KV_ASSERT(lane->pair() != nullptr);  // an offer must name an existing queue pair
      offers.push_back(
          wire::CreateLaneOffer(builder, lane->number, verbs::encode(builder, lane->own), lane->message_count));
    }
    return send_table(session, wire::CreateVerbsConnectRequestDirect(builder, &offers));
  }
  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::VerbsConnectResponse>(frame.table);
    if (response == nullptr || response->lanes() == nullptr || response->lanes()->size() != lanes_.attempt_.size())
      return "verbs_connect: not one answer for each lane";
    for (std::uint32_t i = 0; i < response->lanes()->size(); ++i) {
      const wire::LaneAnswer* const answer = response->lanes()->Get(i);
      Lane& lane = *lanes_.attempt_[i];
      if (answer->lane() != lane.number) return "verbs_connect: lane " + std::to_string(answer->lane());
      if (answer->end() == nullptr) {
        lane.drop_pair();
        lane.why = answer->why() == nullptr ? "refused" : answer->why()->str();
        continue;
      }
      const auto peer = verbs::decode(answer->end());
      if (!peer) return "verbs_connect: " + peer.error().text;
      lane.peer = *peer;
      if ((answer->messages() > 0) != (lane.message_count > 0) || answer->messages() > lane.message_count)
        return "verbs_connect: messages " + std::to_string(answer->messages());
      lane.message_count = answer->messages();
    }
    return {};
  }
  void on_end(CallSession*) override {
    if (!error()) return lanes_.connect_to_answers();
    lanes_.why_ = "verbs_connect: " + (error_text().empty() ? error().message() : error_text());
    lanes_.attempt_ended();
  }

  LinkLanes& lanes_;
};

LinkLanes::LinkLanes(CallSession& session, std::uint32_t lane_count_max, std::uint32_t message_count_max)
    : session_(session),
      shared_(session.shared()),
      lane_count_max_(lane_count_max),
      message_count_max_(message_count_max),
      back_off_({.min = shared_.config.backoff_min, .max = shared_.config.backoff_max, .jitter = 0.5}) {
  KV_ASSERT(lane_count_max > 0 && lane_count_max <= 32);  // bits of a lane set
}

LinkLanes::~LinkLanes() = default;

std::uint32_t LinkLanes::up() const {
  std::uint32_t up = 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) up |= lanes_[i] ? 1u << i : 0u;
  return up;
}

std::uint32_t LinkLanes::reaching(const verbs::RegisteredMemory& memory) const {
  std::uint32_t lanes = up();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!memory.has(shared_.verbs.devices()->device_of(i))) lanes &= ~(1u << i);
  }
  return lanes;
}

std::vector<std::uint32_t> LinkLanes::rkeys(const verbs::RegisteredMemory& memory, std::size_t slice) const {
  std::vector<std::uint32_t> keys;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::size_t device = shared_.verbs.devices()->device_of(lane);
    keys.push_back(memory.has(device) ? memory.rkey(device, slice) : 0);
  }
  return keys;
}

/// Destroying a queue pair takes memory back from a device: afterwards the node's WRITEs are refused in any case.
void LinkLanes::cut(std::uint32_t lanes) {
  bool any = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if ((lanes >> i & 1u) == 0 || !lanes_[i]) continue;
    // A connected lane proves little: only one that lasted resets the pauses, including those that others caused.
    if (shared_.clock.now() - lanes_[i]->since >= 2 * shared_.config.backoff_max) back_off_.forget();
    lanes_[i].reset();  // destroys the queue pair
    any = true;
  }
  if (!cut_attempt(lanes) && !any) return;
  why_ = "a lane broke";
  back_off_.failed(shared_.clock.now(), shared_.random);
}

/// Fails lanes being connected, to be destroyed later, since the other thread has them. Returns whether there were any.
bool LinkLanes::cut_attempt(std::uint32_t lanes) {
  bool any = false;
  if (attempt_state_ != Attempt::kAnswered) return any;  // a queue pair in INIT receives nothing
  for (const auto& lane : attempt_) {
    const bool is_meant = lane->message_count > 0 ? lanes == kAll : (lanes >> lane->number & 1u) != 0;
    if (!is_meant) continue;
    [[maybe_unused]] const auto failed = lane->pair()->fail();  // an error: the device is gone
    lane->is_cut = any = true;
  }
  return any;
}

bool LinkLanes::wants_messages() const {
  return !message_lane_ && message_count_max_ > 0 && session_.may_try_messages();
}

void LinkLanes::cut_all() {
  cut(kAll);
  message_lane_.reset();
}

std::uint32_t LinkLanes::message_count() const { return message_lane_ ? message_lane_->message_count : 0; }

bool LinkLanes::send_message(std::span<const std::byte> message) {
  return message_lane_ && message_lane_->messages->send(message).has_value();
}

/// One attempt at a time, in four steps: queue pairs are made on the slow thread, offered to the node, connected to its
/// answers on the slow thread, and taken into use here. `attempt_` holds the lanes meanwhile; the lifeline drops steps
/// that return after the session.
void LinkLanes::connect_missing() {
  VerbsLender& lender = shared_.verbs;
  lender.open();
  if (lender.state() != VerbsLender::State::kReady || attempt_state_ != Attempt::kNone) return;
  if (!back_off_.is_due(shared_.clock.now())) return;
  if (lanes_.empty()) {
    const std::size_t wanted =
        shared_.config.rdma_lanes > 0 ? shared_.config.rdma_lanes : lender.devices()->devices.size();
    lanes_.resize(std::min<std::size_t>(wanted, lane_count_max_));
  }
  attempt_.clear();
  const auto offer = [&](std::size_t number, std::uint32_t message_count) {
    const auto& lane = attempt_.emplace_back(std::make_shared<Lane>());
    lane->open = lender.devices();
    lane->number = static_cast<std::uint32_t>(number);
    lane->message_count = message_count;
  };
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i]) offer(i, 0);
  }
  if (wants_messages()) offer(lane_count_max_, message_count_max_);
  if (attempt_.empty()) return;
  attempt_state_ = Attempt::kOffered;
  const auto make_all = [lanes = attempt_] {
    for (const auto& lane : lanes) make_pair(*lane);
  };
  lender.slow_calls().run(make_all, shared_.executor, lifeline_.guard([this] { send_offers(); }));
}

/// On the other thread. Without a queue pair afterwards, lane.why has the reason.
void LinkLanes::make_pair(Lane& lane) {
  const verbs::OpenDevice& device = lane.device();
  auto attached = device.attach();
  if (!attached) {
    lane.why = attached.error().text;
    return;
  }
  // For messages a completion for each SEND and each receive; for blocks none, but a queue needs some entries.
  auto queue = device.device->create_completion_queue(lane.message_count > 0 ? 2 * lane.message_count : 4);
  if (!queue) {
    lane.why = queue.error().message();
    return;
  }
  lane.queue = std::move(*queue);
  if (lane.message_count > 0) {
    auto messages = verbs::VerbsMessages::create(*device.domain, *lane.queue,
                                                 {.count = lane.message_count,
                                                  .bytes_max = kMessageBytesMax,
                                                  .port = attached->port,
                                                  .remote = {.remote_write = true}});
    if (!messages) {
      lane.why = messages.error().text;
      return;
    }
    lane.messages = std::move(*messages);
  } else {
    auto pair = device.domain->create_queue_pair(*lane.queue, {.request_count_max = 1,
                                                               .receive_count_max = 0,
                                                               .piece_count_max = 1,
                                                               .port = attached->port,
                                                               .remote = {.remote_write = true, .remote_read = true}});
    if (!pair) {
      lane.why = pair.error().text;
      return;
    }
    lane.blocks = std::move(*pair);
  }
  lane.path.first_psn = verbs::random_psn();
  lane.own = address_of(*attached, lane.pair()->number(), lane.path.first_psn);
  lane.attachment = std::move(*attached);
}

/// The node receives queue pairs in INIT, and connects its own side first. Requests name a lane only after both sides
/// are connected, so it stays idle in between.
void LinkLanes::send_offers() {
  drop_without_pair();
  if (attempt_.empty() || !session_.can_take_call()) return attempt_ended();
  connect_ = std::make_unique<ConnectCall>(*this);
  session_.start_own(*connect_, kConnectLimit);
}

void LinkLanes::drop_without_pair() {
  std::erase_if(attempt_, [&](const auto& lane) {
    if (lane->pair() == nullptr) why_ = "lane " + std::to_string(lane->number) + ": " + lane->why;
    return lane->pair() == nullptr;
  });
}

void LinkLanes::connect_to_answers() {
  KV_ASSERT(attempt_state_ == Attempt::kOffered);
  drop_without_pair();
  attempt_state_ = Attempt::kAnswered;
  const auto connect_all = [lanes = attempt_] {
    for (const auto& lane : lanes) {
      const auto path = path_to(*lane->attachment, lane->path.first_psn, lane->peer);
      const auto connected = lane->pair()->connect(lane->peer, path);
      lane->is_connected = connected.has_value();
      if (!connected) lane->why = connected.error().text;
    }
  };
  shared_.verbs.slow_calls().run(connect_all, shared_.executor, lifeline_.guard([this] { attempt_ended(); }));
}

/// Lanes cut while the other thread connected them are destroyed here, after it has let go of them.
void LinkLanes::attempt_ended() {
  KV_ASSERT(attempt_state_ != Attempt::kNone);
  attempt_state_ = Attempt::kNone;
  for (auto& lane : std::exchange(attempt_, {})) {
    if (lane->is_cut) {
      why_ = "a lane broke";
    } else if (lane->is_connected) {
      lane->since = shared_.clock.now();
      if (lane->messages) {
        begin_messages(std::move(lane));
      } else {
        KV_ASSERT(lane->number < lanes_.size() && !lanes_[lane->number]);
        lanes_[lane->number] = std::move(lane);
      }
    } else if (!lane->why.empty()) {
      why_ = "lane " + std::to_string(lane->number) + ": " + lane->why;
    }
  }
  if (!wants_messages() && std::ranges::all_of(lanes_, [](const auto& lane) { return lane != nullptr; })) {
    why_.clear();
  } else {
    back_off_.failed(shared_.clock.now(), shared_.random);
  }
}

void LinkLanes::begin_messages(std::shared_ptr<Lane> lane) {
  lane->loop = std::make_shared<MessageLoop>(shared_.executor, lane->open, std::move(lane->queue));
  lane->messages->attach(
      lane->loop->loop, shared_.clock, [this](std::span<const std::byte> message) { session_.message_came(message); },
      [this](error_code why) { session_.messages_broke(why); });
  // An exception is a bug (an assertion, see AssertPolicy) or the end of memory: this session ends, others go on.
  const auto ended = lifeline_.guard([this](std::exception_ptr thrown, Result<void> result) {
    if (thrown || !result) session_.messages_broke(thrown ? make_error_code(Errc::kBadFrame) : result.error());
  });
  asio::co_spawn(shared_.executor, MessageLoop::run(lane->loop), ended);
  message_lane_ = std::move(lane);
}

}  // namespace kv
