// A node that does everything in every order, and callers that use their memory for something else the moment a call
// ends. What the node does with each request is drawn at random: the right answer, another one, none, a late one, one
// to a request that has ended; it stops reading, closes, comes back as somebody else. On virtual time, by seed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/transport/sim_world.h"
#include "transport/frames/frame_reader.h"
#include "transport/frames/frame_writer.h"
#include "transport/wire_generated.h"

namespace kv {
namespace {

constexpr std::byte kReused{0xA5};         ///< What a caller writes to its memory once a call has ended.
constexpr std::size_t kReusedRunMax = 32;  ///< So many of them in a row are no chance.
constexpr std::size_t kHostileBlockBytes = 2 * kStripeBytes + 512;
constexpr std::size_t kBlocks = 8;  ///< A whole put is twice what the simulated socket buffers take.

/// Draws the same in every run of a seed, with any standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  std::chrono::microseconds pause(std::chrono::microseconds longest) {
    return std::chrono::microseconds(below(static_cast<std::size_t>(longest.count()) + 1));
  }

 private:
  std::mt19937_64 random_;
};

/// What the caller's memory holds may come to the node only while its call is in progress.
class ReusedMemoryFinder final : public PayloadSink {
 public:
  std::size_t next(std::span<asio::mutable_buffer> buffers) override {
    buffers[0] = asio::buffer(scratch_);
    return 1;
  }
  void filled(std::size_t bytes) override { look({scratch_.data(), bytes}); }
  void look(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      run_ = byte == kReused ? run_ + 1 : 0;
      found_ = found_ || run_ >= kReusedRunMax;
    }
  }
  bool found() const { return found_; }

 private:
  std::vector<std::byte> scratch_ = std::vector<std::byte>(64 * 1024);
  std::size_t run_ = 0;
  bool found_ = false;
};

struct World {
  explicit World(std::uint64_t seed) : dice(seed), network(clock, seed) {}

  Dice dice;
  VirtualClock clock;
  SimNetwork network;
  Loop loop{&clock};
  NamespaceRecord record = test_record(kHostileBlockBytes);
  std::vector<BlockHash> chain = test_chain(record, kBlocks);
  std::vector<std::vector<std::byte>> blocks = [this] {
    std::vector<std::vector<std::byte>> all(kBlocks, std::vector<std::byte>(kHostileBlockBytes));
    for (std::size_t i = 0; i < kBlocks; ++i) fill_block(chain[i], all[i]);
    return all;
  }();
  bool reused_memory_was_sent = false, other_descriptor_was_sent = false;
  std::size_t frames = 0;
  bool over = false;

  asio::awaitable<void> sleep(Duration time) {
    Event rung(loop.context().get_executor());
    const auto alarm = clock.make_alarm(loop.context().get_executor());
    alarm->arm(clock.now() + time, [&] { rung.set(); });
    co_await rung.wait();
  }
};

/// One connection of the node.
class HostileSession : public std::enable_shared_from_this<HostileSession> {
 public:
  HostileSession(World& world, std::unique_ptr<Stream> stream)
      : world_(world),
        stream_(std::move(stream)),
        reader_(*stream_),
        writer_(*stream_, world.loop.context().get_executor()) {
    reader_.set_limits({.table_bytes_max = 1 << 20, .payload_bytes_max = 1 << 30});
  }

  static asio::awaitable<void> write(std::shared_ptr<HostileSession> self) { co_await self->writer_.run(); }
  static asio::awaitable<void> serve(std::shared_ptr<HostileSession> self) {
    while (!self->closed_) {
      const auto frame = co_await self->reader_.next();
      if (!frame) break;
      ++self->world_.frames;
      self->on_frame(*frame);
      ReusedMemoryFinder finder;
      finder.look(frame->table);
      if (frame->header.payload_bytes > 0) {
        const auto read = co_await self->reader_.read_payload(finder);
        if (finder.found()) self->world_.reused_memory_was_sent = true;
        if (!read) break;
      }
      if (finder.found()) self->world_.reused_memory_was_sent = true;
      const Duration deaf = std::exchange(self->deaf_for_, Duration::zero());
      if (deaf > Duration::zero()) co_await self->world_.sleep(deaf);
    }
    self->close();
  }
  void close() {
    closed_ = true;
    writer_.close();
    stream_->close();
  }

 private:
  using Builder = flatbuffers::FlatBufferBuilder;

  void on_frame(const FrameReader::Frame& frame) {
    Dice& dice = world_.dice;
    const FrameHeader to = frame.header;
    if (to.type == FrameType::kRegionAdd) look_at_descriptor();
    if (to.type == FrameType::kCancel) {
      if (dice.one_in(2)) error(to_cancelled(frame), Errc::kCancelled);
      return;
    }
    if (to.type == FrameType::kPutData && !dice.one_in(3)) return;  // more may come
    if (to.type == FrameType::kPut && dice.one_in(3)) {             // asks for blocks, and takes a part of them at most
      want(to);
      deaf_for_ = dice.pause(30ms);
    }
    if (to.type != FrameType::kHello) asked_.push_back(to);
    if (asked_.size() > 32) asked_.pop_front();
    // Most often as it should be, or nothing would ever get far.
    const bool behaves =
        to.type == FrameType::kHello || to.type == FrameType::kOpen ? !dice.one_in(12) : dice.one_in(2);
    if (behaves) return answer(to);
    for (std::size_t steps = 1 + dice.below(4); steps > 0; --steps) {
      if (dice.one_in(2)) {
        misbehave(to);
      } else {
        const auto step = [](std::shared_ptr<HostileSession> self, FrameHeader header,
                             Duration pause) -> asio::awaitable<void> {
          co_await self->world_.sleep(pause);
          if (!self->closed_) self->misbehave(header);
        };
        asio::co_spawn(world_.loop.context(), step(shared_from_this(), to, dice.pause(60ms)), asio::detached);
      }
    }
  }

  FrameHeader to_cancelled(const FrameReader::Frame& frame) const {
    FrameHeader header;
    const auto* request = read_table<wire::CancelRequest>(frame.table);
    if (request != nullptr) header.request_id = request->request_id();
    for (const FrameHeader& asked : asked_)
      if (asked.request_id == header.request_id) header.type = asked.type;
    return header;
  }

  void look_at_descriptor() {
    const Descriptor fd = stream_->take_descriptor();
    if (!fd) return;
    char name[256] = "";
    const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), name, sizeof name - 1);
    if (std::string_view(name, length > 0 ? static_cast<std::size_t>(length) : 0).find("memfd:") ==
        std::string_view::npos) {
      world_.other_descriptor_was_sent = true;
    }
  }

  void misbehave(const FrameHeader& to) {
    Dice& dice = world_.dice;
    switch (dice.below(14)) {
      case 0: return answer(to);
      case 1:
      case 2: return error(to, static_cast<Errc>(1 + dice.below(20)));
      case 3: return error(to, Errc::kNoNamespace);
      case 4: {
        FrameHeader other = to;
        other.type = static_cast<FrameType>(1 + dice.below(kFrameTypeMax));
        return answer(other);
      }
      case 5: return want(to);
      case 6: return part(to, dice.below(kBlocks + 2), 1 + dice.below(2));
      case 7:
      case 8: deaf_for_ = dice.one_in(3) ? Duration(1s) : Duration(dice.pause(80ms)); return;
      case 9:
        if (dice.one_in(3)) close();
        return;
      case 10:  // a request of before
        if (!asked_.empty() && dice.one_in(3)) return answer(asked_[dice.below(asked_.size())]);
        return;
      case 11:
        if (!asked_.empty()) return error(asked_[dice.below(asked_.size())], Errc::kNoNamespace);
        return;
      default: return;  // silence
    }
  }

  void answer(const FrameHeader& to) {
    Dice& dice = world_.dice;
    switch (to.type) {
      case FrameType::kHello: {
        const std::string id = dice.one_in(6) ? "another" : "node";
        const auto limit = [&](std::uint32_t usual) {
          static constexpr std::uint32_t kOdd[] = {0, 1, 2, 5, 4096, 65536, std::numeric_limits<std::uint32_t>::max()};
          return dice.one_in(8) ? kOdd[dice.below(std::size(kOdd))] : usual;
        };
        return reply(to, kFrameResponse, [&](Builder& builder) {
          const std::uint8_t version = dice.one_in(20) ? static_cast<std::uint8_t>(dice.below(4)) : kWireVersion;
          const std::vector<std::uint8_t> instance(dice.one_in(50) ? 3 : kInstanceBytes, 1);
          return wire::CreateHelloResponseDirect(builder, version, id.c_str(), dice.below(3), limit(1 << 20),
                                                 limit(65536), limit(64), limit(1 << 30), 0, false, &instance);
        });
      }
      case FrameType::kOpen:
        return reply(to, kFrameResponse, [&](Builder& builder) {
          return wire::CreateOpenResponse(builder, static_cast<std::uint32_t>(1 + dice.below(3)),
                                          dice.one_in(20) ? 1 : kHostileBlockBytes);
        });
      case FrameType::kMatch:
        return reply(to, kFrameResponse, [&](Builder& builder) {
          return wire::CreateMatchResponse(builder, static_cast<std::uint32_t>(dice.below(kBlocks + 1)), 0,
                                           dice.below(2), 1000, 0, 0, nullptr, 0, dice.below(3), dice.below(5));
        });
      case FrameType::kClusterMap:
        return reply(to, kFrameResponse, [&](Builder& builder) {
          // Mostly maps that a client may take up: of this node, others that are nowhere, or both.
          static constexpr const char* kIds[] = {"node", "another", "x", "", "a b"};
          static constexpr const char* kEndpoints[] = {"sim://node", "sim://nowhere", "none"};
          std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes;
          for (std::size_t i = dice.below(4); i > 0; --i) {
            const auto usual = [&](std::size_t most, std::size_t all) {
              return dice.below(dice.one_in(8) ? all : most);
            };
            const std::vector<std::string> endpoints(1, kEndpoints[usual(2, 3)]);
            const auto list = builder.CreateVectorOfStrings(endpoints);
            nodes.push_back(wire::CreateClusterNode(builder, builder.CreateString(kIds[usual(3, 5)]), list,
                                                    static_cast<double>(usual(1, 3)) - 1 + 2.0 * !dice.one_in(8),
                                                    static_cast<std::uint8_t>(usual(2, 4))));
          }
          return wire::CreateClusterMapResponse(builder, dice.below(6), static_cast<std::uint32_t>(dice.below(4)),
                                                builder.CreateVector(nodes));
        });
      case FrameType::kHotRoots:
        return reply(to, kFrameResponse, [&](Builder& builder) {
          const std::vector<wire::Hash> blocks(dice.below(dice.one_in(20) ? 5000 : 5));
          return wire::CreateHotRootsResponseDirect(builder, dice.below(3), &blocks);
        });
      case FrameType::kGet: {
        const std::size_t count = dice.below(kBlocks + 1);
        if (count > 0) part(to, 0, count);
        return reply(to, kFrameResponse, [&](Builder& builder) {
          return wire::CreateGetResponse(builder, static_cast<std::uint32_t>(count));
        });
      }
      case FrameType::kPut: return want(to);
      case FrameType::kPutData: {
        FrameHeader header = to;
        header.type = FrameType::kPut;
        return reply(header, kFrameResponse, [&](Builder& builder) {
          return wire::CreatePutResponse(builder, kBlocks - static_cast<std::uint32_t>(dice.below(2)));
        });
      }
      case FrameType::kRegionAdd:
        return reply(to, kFrameResponse, [&](Builder& builder) { return wire::CreateRegionResponse(builder, 1); });
      case FrameType::kTouch:
      case FrameType::kRetain:
      case FrameType::kUnretain:
      case FrameType::kDrop:
        return reply(to, kFrameResponse, [&](Builder& builder) { return wire::CreateCountResponse(builder, 2); });
      case FrameType::kAdmin:
        return reply(to, kFrameResponse,
                     [&](Builder& builder) { return wire::CreateAdminResponseDirect(builder, "{}"); });
      default: return reply(to, kFrameResponse, [&](Builder& builder) { return wire::CreateEmptyResponse(builder); });
    }
  }
  void want(FrameHeader to) {
    if (to.type == FrameType::kPutData) to.type = FrameType::kPut;
    const auto first = static_cast<std::uint32_t>(world_.dice.one_in(4) ? world_.dice.below(kBlocks) : 0);
    reply(to, kFrameResponse | kFrameMore,
          [&](Builder& builder) { return wire::CreatePutWant(builder, first, kBlocks - first); });
  }
  void part(const FrameHeader& to, std::size_t first, std::size_t count) {
    std::vector<std::byte> payload;
    std::vector<std::uint64_t> sums;
    for (std::size_t i = first; i < std::min(first + count, kBlocks); ++i) {
      const std::span<const std::byte> block(world_.blocks[i]);
      std::vector<std::uint64_t> of_block(stripe_count(block.size()));
      block_checksums(checksum_seed(world_.record.id(), world_.chain[i]), block, of_block);
      if (world_.dice.one_in(10)) ++of_block.back();
      sums.insert(sums.end(), of_block.begin(), of_block.end());
      payload.insert(payload.end(), block.begin(), block.end());
    }
    const bool is_inline = !world_.dice.one_in(4);
    reply(
        to, kFrameResponse | kFrameMore,
        [&](Builder& builder) {
          return wire::CreateGetPartDirect(builder, 0, static_cast<std::uint32_t>(first),
                                           static_cast<std::uint32_t>(count), &sums);
        },
        is_inline ? std::span<const std::byte>(payload) : std::span<const std::byte>());
  }
  void error(FrameHeader to, Errc code) {
    if (to.type == FrameType::kPutData) to.type = FrameType::kPut;
    reply(to, kFrameResponse | kFrameError, [&](Builder& builder) {
      return wire::CreateErrorDirect(builder, static_cast<std::uint16_t>(code), "as the dice fell");
    });
  }
  template <class Build>
  void reply(const FrameHeader& to, int flags, Build&& build, std::span<const std::byte> payload = {}) {
    if (closed_) return;
    Builder builder;
    builder.Finish(build(builder));
    FrameHeader header;
    header.type = to.type;
    header.request_id = to.request_id;
    header.flags = static_cast<std::uint16_t>(flags);
    const auto kept = std::make_shared<std::vector<std::byte>>(payload.begin(), payload.end());
    const std::span<const std::byte> part(*kept);
    writer_.send(header, std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())), std::span(&part, 1),
                 [kept](bool) {});
    writer_.flush();
  }

  World& world_;
  std::unique_ptr<Stream> stream_;
  FrameReader reader_;
  FrameWriter writer_;
  std::deque<FrameHeader> asked_;
  Duration deaf_for_{};
  bool closed_ = false;
};

class HostileNode {
 public:
  explicit HostileNode(World& world) : world_(world) {
    listener_ =
        world.network.listen({Endpoint::Scheme::kSim, "hostile", ""}, world.loop.context().get_executor()).value();
    asio::co_spawn(world.loop.context(), accept(*this), asio::detached);
  }
  void stop() {  // it is destroyed only once its coroutines have ended
    listener_->close();
    for (const auto& weak : sessions_)
      if (const auto session = weak.lock()) session->close();
  }

 private:
  static asio::awaitable<void> accept(HostileNode& node) {
    for (;;) {
      auto stream = co_await node.listener_->accept(node.world_.loop.context().get_executor());
      if (!stream) co_return;
      if (node.world_.dice.one_in(12)) continue;  // closed at once
      const auto session = std::make_shared<HostileSession>(node.world_, std::move(*stream));
      node.sessions_.push_back(session);
      asio::co_spawn(node.world_.loop.context(), HostileSession::serve(session), asio::detached);
      asio::co_spawn(node.world_.loop.context(), HostileSession::write(session), asio::detached);
    }
  }
  World& world_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::weak_ptr<HostileSession>> sessions_;
};

/// A caller's memory. After the call it is used for something else at once: overwritten, or freed, where the address
/// sanitizer sees who still reads or writes it.
class CallerMemory {
 public:
  explicit CallerMemory(World& world) : world_(world), bytes_(new std::byte[kBlocks * kHostileBlockBytes]) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      std::copy(world.blocks[i].begin(), world.blocks[i].end(), bytes_.get() + i * kHostileBlockBytes);
      to.emplace_back(bytes_.get() + i * kHostileBlockBytes, kHostileBlockBytes);
    }
    from.assign(to.begin(), to.end());
  }
  ~CallerMemory() {
    EXPECT_TRUE(is_reused_ || bytes_ == nullptr || world_.over);
    if (bytes_) check();
  }
  void clear() { std::fill_n(bytes_.get(), kBlocks * kHostileBlockBytes, std::byte{0x11}); }
  std::size_t right() const {
    std::size_t count = 0;
    while (count < kBlocks && std::equal(to[count].begin(), to[count].end(), world_.blocks[count].begin())) ++count;
    return count;
  }
  void reuse(bool frees) {
    if (frees) bytes_.reset();
    if (bytes_) std::fill_n(bytes_.get(), kBlocks * kHostileBlockBytes, kReused);
    is_reused_ = true;
  }
  /// Nothing landed here after the call had ended.
  void check() const {
    if (!bytes_ || !is_reused_) return;
    const auto* const end = bytes_.get() + kBlocks * kHostileBlockBytes;
    EXPECT_EQ(std::find_if(bytes_.get(), const_cast<std::byte*>(end), [](std::byte b) { return b != kReused; }), end);
  }

  std::vector<std::span<std::byte>> to;
  std::vector<std::span<const std::byte>> from;

 private:
  World& world_;
  std::unique_ptr<std::byte[]> bytes_;
  bool is_reused_ = false;
};

class Caller {
 public:
  Caller(World& world, Client& client, Space space) : world_(world), client_(client), space_(space) {}

  asio::awaitable<void> run(int calls, int& running) {
    for (; calls > 0; --calls) {
      const auto deadline = std::chrono::microseconds(1 + world_.dice.below(50'000));
      const TimePoint until = world_.clock.now() + deadline;
      co_await call(deadline);
      EXPECT_LE((world_.clock.now() - until).count(), 0) << op_;
      if (world_.dice.one_in(3)) co_await world_.sleep(world_.dice.pause(20ms));
    }
    --running;
  }

 private:
  asio::awaitable<void> call(std::chrono::microseconds deadline) {
    Dice& dice = world_.dice;
    op_ = dice.below(12);
    switch (op_) {
      case 0: {
        const MatchOptions options{.deadline = deadline, .lease = dice.one_in(2)};
        const auto match = co_await client_.match(space_, world_.chain, options);
        EXPECT_TRUE(match && match->block_count <= kBlocks);
        if (match && dice.one_in(2)) client_.release(match->lease);
        break;
      }
      case 1:
      case 2:
      case 3: co_await get(deadline); break;
      case 4:
      case 5:
      case 6:
      case 7: co_await put(deadline); break;
      case 8: co_await lent(deadline); break;
      case 9: {
        NodeQuestion question{.path = "/stats.json"};
        const auto stats = co_await client_.ask(std::move(question), deadline);
        EXPECT_TRUE(stats);
        break;
      }
      case 10: {
        const auto times = co_await client_.ping(deadline);
        EXPECT_TRUE(times);
        break;
      }
      default: {
        const auto count = co_await client_.touch(space_, world_.chain, deadline);
        (void)count;
        break;
      }
    }
  }
  asio::awaitable<void> get(std::chrono::microseconds deadline) {
    auto memory = std::make_unique<CallerMemory>(world_);
    memory->clear();
    const GetOptions options{.deadline = deadline};
    const auto got = co_await client_.get(space_, world_.chain, memory->to, options);
    EXPECT_TRUE(got) << got.error().message();
    if (got) {
      EXPECT_LE(got->block_count, memory->right());
    }
    give_back(std::move(memory));
  }
  asio::awaitable<void> put(std::chrono::microseconds deadline) {
    auto memory = std::make_unique<CallerMemory>(world_);
    const PutOptions options{.deadline = deadline};
    const auto put = co_await client_.put(space_, world_.chain, memory->from, options);
    EXPECT_TRUE(put) << put.error().message();
    if (put) {
      EXPECT_EQ(put->stored + put->already_stored + put->refused, kBlocks);
    }
    give_back(std::move(memory));
  }
  /// Memory that is lent, and freed while the node may not even have heard of it. Descriptors get their numbers anew.
  asio::awaitable<void> lent(std::chrono::microseconds deadline) {
    Dice& dice = world_.dice;
    const auto memory = client_.allocate(kBlocks * kHostileBlockBytes);
    if (!memory) co_return;
    Blocks blocks(*memory, kBlocks, kHostileBlockBytes);
    if (dice.one_in(3)) {
      const auto lent = co_await client_.lend(*memory, deadline);
      EXPECT_TRUE(lent);
    } else if (dice.one_in(2)) {
      const PutOptions options{.deadline = deadline};
      const auto put = co_await client_.put(space_, world_.chain, blocks.from, options);
      EXPECT_TRUE(put || put.error() == Errc::kQuarantined);
    } else {
      blocks.fill(world_.chain);
      const GetOptions options{.deadline = deadline};
      const auto got = co_await client_.get(space_, world_.chain, blocks.to, options);
      EXPECT_TRUE(got || got.error() == Errc::kQuarantined);
      if (got) {
        EXPECT_LE(got->block_count, blocks.right(world_.chain));
      }
    }
    EXPECT_TRUE(client_.free_memory(*memory));
    files_.push_back(Descriptor(::dup(STDIN_FILENO)));
    if (files_.size() > 8) files_.pop_front();
  }
  void give_back(std::unique_ptr<CallerMemory> memory) {
    memory->reuse(/*frees=*/world_.dice.one_in(2));
    kept_.push_back(std::move(memory));
    if (kept_.size() > 4) kept_.pop_front();
  }

  World& world_;
  Client& client_;
  Space space_;
  std::size_t op_ = 0;
  std::deque<std::unique_ptr<CallerMemory>> kept_;
  std::deque<Descriptor> files_;
};

void run_seed(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  World world(seed);
  SimFaults faults;
  faults.chunk_bytes_max = std::size_t{1} << (12 + world.dice.below(8));
  faults.delay_max = world.dice.one_in(4) ? Duration(5ms) : Duration(200us);
  world.network.set_faults(faults);
  world.network.set_passes_descriptors(!world.dice.one_in(3));
  auto node = std::make_unique<HostileNode>(world);

  ClientConfig config = repeatable_config(seed + 1);
  config.nodes = {{.endpoint = "sim://hostile"}};
  config.connections_per_node = 1 + world.dice.below(3);
  config.connect_timeout = 40ms;
  config.backoff_min = 1ms;
  config.backoff_max = 4ms;
  config.breaker_failures = world.dice.one_in(3) ? 5 : 1'000'000;
  config.breaker_open = 5ms;
  config.rdma = ClientConfig::Rdma::kOff;
  auto client = std::make_unique<Client>(world.loop.context().get_executor(), config, world.network, world.clock);
  Result<Space> space = error_code(Errc::kUnavailable);
  for (int i = 0; i < 100 && !space; ++i) {
    world.loop.run_for(5ms);
    space = world.loop.run(client->open(world.record, 50ms));
  }
  ASSERT_TRUE(space) << space.error().message() << ": " << client->nodes()[0].last_error_text;

  std::vector<std::unique_ptr<Caller>> callers;
  int running = 0;
  for (std::size_t i = 1 + world.dice.below(6); i > 0; --i) {
    ++running;
    callers.push_back(std::make_unique<Caller>(world, *client, *space));
    asio::co_spawn(world.loop.context(), callers.back()->run(25, running), [](std::exception_ptr exception) {
      if (exception) std::rethrow_exception(exception);
    });
  }
  world.loop.run_until([&] { return running == 0; });
  if (world.dice.one_in(2))
    world.loop.run_for(2s);  // what is under way comes to its end, or is cut off by the client's
  client.reset();
  world.loop.run_for(3s);
  node->stop();
  world.loop.run_for(3s);
  world.loop.drain();
  world.over = true;
  callers.clear();
  EXPECT_FALSE(world.reused_memory_was_sent) << "the node was sent memory of a call that had ended";
  EXPECT_FALSE(world.other_descriptor_was_sent) << "the node was sent a file that was never lent";
  EXPECT_EQ(world.network.stream_count(), 0u);
}

TEST(HostileNodeTest, WhateverTheNodeDoesCallsEndInTimeAndGiveTheirMemoryBack) {
  const char* const count = std::getenv("KV_NODE_SEEDS");
  const char* const one = std::getenv("KV_SEED");
  const std::uint64_t first = one == nullptr ? 1 : seed_or(1);
  const std::uint64_t last = one != nullptr ? first : count == nullptr ? 150 : std::strtoull(count, nullptr, 10);
  for (std::uint64_t seed = first; seed <= last && !testing::Test::HasFailure(); ++seed) run_seed(seed);
}

}  // namespace
}  // namespace kv
