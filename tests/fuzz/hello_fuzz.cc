// Any hello to a node whose policy knows one token: who shows just that token may write, and nobody else may.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "base/assert.h"
#include "store/node/session/session.h"
#include "tests/fuzz/input.h"
#include "tests/transport/sim_world.h"
#include "transport/frames/frame_message.h"

namespace kv {
namespace {

using flatbuffers::FlatBufferBuilder;
using Bytes = std::vector<std::byte>;

const std::string kToken = "0123456789abcdef0123456789abcdef";

/// What lives longer than one input: the metrics are costly to make, and the policy is a file.
struct Lasting {
  NodeMetrics metrics{"fuzz"};
  std::unique_ptr<AccessControl> access;
  Lasting() {
    std::string path = "/tmp/kvstore-hello-fuzz-XXXXXX";
    const int fd = ::mkstemp(path.data());
    KV_ASSERT(fd >= 0);
    ::close(fd);
    std::ofstream(path) << "[job]\n"
                           "token-sha256 = [\"3eb1bd439947eb762998e566ccc2e099c791118b2f40579cc4f7da2b5061b7f9\"]\n"
                           "roles = [\"writer\"]\n";
    access = AccessControl::open(path).value();
    ::unlink(path.c_str());
  }
};
Lasting& lasting() {
  spdlog::set_level(spdlog::level::off);
  static Lasting instance;
  return instance;
}

void append(Bytes& to, FrameType type, std::uint64_t id, const FlatBufferBuilder& builder) {
  FrameHeader header;
  header.type = type;
  header.request_id = id;
  const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  const std::size_t at = to.size();
  to.resize(at + kFrameHeaderBytes);
  encode_frame_header(header, table, std::span(to).subspan(at).first<kFrameHeaderBytes>());
  to.insert(to.end(), table.begin(), table.end());
}

/// The right token, nearly so, or anything.
std::string draw_token(Input& input) {
  std::string token = kToken;
  switch (input.below(6)) {
    case 0: return token;
    case 1: token[input.below(token.size())] ^= static_cast<char>(1 << input.below(8)); break;
    case 2: token.resize(input.below(token.size() + 1)); break;
    case 3: token += static_cast<char>(input.byte()); break;
    default: {
      const auto bytes = input.take(input.below(600));
      token.assign(bytes.begin(), bytes.end());
    }
  }
  return token;
}

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  Input input(data, size);
  NodeMetrics& metrics = lasting().metrics;
  SimWorld world;
  StoreConfig config;
  config.arena.capacity_bytes = 1 << 20;
  config.arena.huge_pages = false;
  config.arena.touch = false;
  LockedStore store(Store::create(config).value(), metrics);
  NodeContext node{.store = store, .clock = world.clock, .metrics = metrics, .limits = {}};
  node.access = lasting().access.get();
  const bool is_heard = input.flag();
  if (is_heard) world.network.set_protection(Stream::Protection::kNone);
  const auto listener = world.network.listen({Endpoint::Scheme::kSim, "node", ""}, world.io.get_executor()).value();
  auto stream = world.await(world.network.connect(listener->endpoint(), world.io.get_executor())).value().value();
  auto accepted = world.await(listener->accept(world.io.get_executor())).value().value();
  auto session = std::make_shared<Session>(node, SessionId{1}, std::move(accepted), world.io.get_executor(), nullptr);
  bool ended = false;
  asio::co_spawn(world.io, session->run(), [&](std::exception_ptr error) {
    KV_ASSERT(!error);
    ended = true;
  });

  Bytes out;
  FlatBufferBuilder builder;
  const bool has_token = input.flag(), has_identity = input.flag();
  const std::string token = has_token ? draw_token(input) : "";
  const auto identity_bytes = input.take(has_identity ? input.below(200) : 0);
  const std::string identity(identity_bytes.begin(), identity_bytes.end());
  const auto shown = has_token ? builder.CreateString(token) : 0;
  const auto called = has_identity ? builder.CreateString(identity) : 0;
  const std::uint8_t version_min = input.byte(), version_max = input.byte();
  builder.Finish(wire::CreateHelloRequest(builder, version_min, version_max, called, shown));
  append(out, FrameType::kHello, 1, builder);
  if (input.flag() && !out.empty()) out[input.below(out.size())] ^= std::byte{1};
  builder.Clear();
  builder.Finish(wire::CreateOpenRequestDirect(builder, "block_bytes=4096\nblock_size=2\nmodel=m\n"));
  append(out, FrameType::kOpen, 2, builder);
  for (std::size_t at = 0; at < out.size();) {
    const asio::const_buffer rest(out.data() + at, out.size() - at);
    const auto sent = stream->try_write(std::span(&rest, 1));
    if (!sent && sent.error() != asio::error::would_block) break;
    if (sent) at += *sent;
    world.run_for(1ms);
  }
  world.run_for(1s);
  // Nobody but the writer has the right to open a namespace.
  const std::size_t opened = store.with([](Store& each) { return each.namespace_count(); });
  KV_ASSERT(opened == 0 || (has_token && token == kToken && !is_heard));
  stream->close();
  world.run_until([&] { return ended; }, 100s);
  KV_ASSERT(ended);
  world.run_for(10s);
  KV_ASSERT(session.use_count() == 1);
  session.reset();
  return 0;
}
