// What transport/verbs/verbs.h promises, on every provider that is here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/transport/verbs_world.h"

namespace kv::verbs {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

void fill(std::span<std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
}

class VerbsConformanceTest : public testing::TestWithParam<std::string> {
 protected:
  VerbsConformanceTest() {
    fill(node.memory, 1);
    fill(client.memory, 2);
    node_before = node.memory;
    client_before = client.memory;
  }

  Request write(std::span<const Piece> pieces, std::size_t to) const {
    return {.opcode = Opcode::kWrite,
            .pieces = pieces,
            .remote_address = client.address(to),
            .rkey = client.region->rkey()};
  }
  Request read(std::span<const Piece> pieces, std::size_t from) const {
    Request request = write(pieces, from);
    request.opcode = Opcode::kRead;
    return request;
  }
  /// Posts one request on a new link, returns how it ended, and expects a flush of what comes after a failure.
  Status status_of(const Request& request, Link& link) {
    EXPECT_TRUE(link.a->post(std::span(&request, 1), 1));
    const auto got = world->collect(*node.queue, 1);
    if (got.empty()) return Status::kGeneral;
    if (got[0].status != Status::kSuccess) {
      const Piece piece = node.piece(0, 8);
      const Request next{.pieces = std::span(&piece, 1)};
      EXPECT_TRUE(link.a->post(std::span(&next, 1), 2));
      const auto flushed = world->collect(*node.queue, 1);
      EXPECT_EQ(flushed.size(), 1u);
      if (!flushed.empty()) {
        EXPECT_EQ(flushed[0].status, Status::kFlushed);
      }
      EXPECT_EQ(link.a->state(), QueuePair::State::kError);
    }
    return got[0].status;
  }
  Status status_of(const Request& request) {
    Link link(node, client, {}, kOpen);
    return status_of(request, link);
  }

  std::unique_ptr<VerbsWorld> world = VerbsWorld::make(GetParam());
  Side node{*world, world->node_device()};
  Side client{*world, world->client_device()};
  std::vector<std::byte> node_before, client_before;
};

TEST_P(VerbsConformanceTest, DeviceTellsItsNamePortsAndLimits) {
  EXPECT_THAT(world->provider().device_names(), testing::Contains(world->node_device()));
  const DeviceInfo info = node.device->query().value();
  EXPECT_EQ(info.name, world->node_device());
  ASSERT_FALSE(info.ports.empty());
  EXPECT_TRUE(info.ports[0].is_active);
  EXPECT_GE(info.ports[0].mtu_bytes, 256u);
  EXPECT_FALSE(info.ports[0].gids.empty());
  EXPECT_GT(info.limits.region_bytes_max, 0u);
  EXPECT_GT(info.limits.piece_count_max, 1u);
  EXPECT_GT(info.limits.read_count_max, 0u);
  EXPECT_EQ(world->provider().open("no-such-device").error(), Errc::kBadRequest);
}

TEST_P(VerbsConformanceTest, WriteGathersPiecesIntoThePeersMemory) {
  const std::array pieces = {node.piece(10, 1), node.piece(5000, 3001), node.piece(0, 0), node.piece(100, 7)};
  Link link(node, client, {}, kOpen);
  EXPECT_EQ(status_of(write(pieces, 333), link), Status::kSuccess);
  std::vector<std::byte> expected = client_before;
  std::byte* to = expected.data() + 333;
  for (const Piece& piece : pieces) to = std::copy_n(piece.data, piece.bytes, to);
  EXPECT_EQ(client.memory, expected);
  EXPECT_EQ(node.memory, node_before);
}

TEST_P(VerbsConformanceTest, ReadScattersThePeersMemoryIntoPieces) {
  const std::array pieces = {node.piece(40000, 4097), node.piece(3, 1), node.piece(20, 900)};
  EXPECT_EQ(status_of(read(pieces, 777)), Status::kSuccess);
  std::vector<std::byte> expected = node_before;
  const std::byte* from = client_before.data() + 777;
  for (const Piece& piece : pieces) {
    std::copy_n(from, piece.bytes, expected.data() + (piece.data - node.memory.data()));
    from += piece.bytes;
  }
  EXPECT_EQ(node.memory, expected);
  EXPECT_EQ(client.memory, client_before);
}

TEST_P(VerbsConformanceTest, ABatchHasOneCompletion) {
  Link link(node, client, {}, kOpen);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < 32; ++i) pieces.push_back(node.piece(i * 1000, 1000));
  std::vector<Request> batch;
  for (std::size_t i = 0; i < 32; ++i) batch.push_back(write(std::span(&pieces[i], 1), i * 1000));
  std::vector<Completion> all;
  const auto collect_some = [&] {
    const auto some = world->collect(*node.queue, 1);
    all.insert(all.end(), some.begin(), some.end());
    return !some.empty();
  };
  for (std::uint64_t id = 1; id <= 20; ++id) {
    while (!link.a->post(batch, id)) ASSERT_TRUE(collect_some());
  }
  while (all.size() < 20) ASSERT_TRUE(collect_some());
  ASSERT_EQ(all.size(), 20u);
  for (const Completion& completion : all) {
    EXPECT_EQ(completion.status, Status::kSuccess);
    EXPECT_TRUE(completion.is_last);
    EXPECT_EQ(completion.queue_pair, link.a->number());
  }
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const auto& x, const auto& y) { return x.id < y.id; }));
  EXPECT_TRUE(std::equal(client.memory.begin(), client.memory.begin() + 32000, node.memory.begin()));
}

TEST_P(VerbsConformanceTest, InlineBytesMayBeReusedAtOnce) {
  QueuePairOptions options;
  options.inline_bytes_max = 64;
  Link link(node, client, options, kOpen);
  if (link.a->inline_bytes_max() < 64) GTEST_SKIP() << "no inline data here";
  std::array<std::byte, 64> bytes;
  fill(bytes, 3);
  const auto before = bytes;
  const Piece piece{bytes.data(), 64, 0xDEADBEEF};  // its lkey does not matter
  Request request = write(std::span(&piece, 1), 100);
  request.is_inline = true;
  ASSERT_TRUE(link.a->post(std::span(&request, 1), 1));
  bytes.fill(std::byte{0});
  const auto got = world->collect(*node.queue, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, Status::kSuccess);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), client.memory.begin() + 100));
  const Piece large = node.piece(0, 4096);
  request.pieces = std::span(&large, 1);
  EXPECT_EQ(link.a->post(std::span(&request, 1), 2).error(), Errc::kBadRequest);
}

TEST_P(VerbsConformanceTest, SendLandsInTheFirstReceive) {
  Link link(node, client, {}, {});
  const std::array first = {client.piece(0, 100), client.piece(1000, 5000)};
  const std::array second = {client.piece(9000, 10)};
  ASSERT_TRUE(link.b->post_receive(first, 71));
  ASSERT_TRUE(link.b->post_receive(second, 72));
  const std::array message = {node.piece(50, 3000)};
  const std::array empty = {node.piece(50, 0)};
  const std::array batch = {Request{.opcode = Opcode::kSend, .pieces = message},
                            Request{.opcode = Opcode::kSend, .pieces = empty}};
  ASSERT_TRUE(link.a->post(batch, 1));
  const auto sent = world->collect(*node.queue, 1);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, Status::kSuccess);
  const auto got = world->collect(*client.queue, 2);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].id, 71u);
  EXPECT_TRUE(got[0].is_receive);
  EXPECT_EQ(got[0].bytes, 3000u);
  EXPECT_EQ(got[1].id, 72u);
  EXPECT_EQ(got[1].bytes, 0u);
  EXPECT_TRUE(std::equal(client.memory.begin(), client.memory.begin() + 100, node.memory.begin() + 50));
  EXPECT_TRUE(std::equal(client.memory.begin() + 1000, client.memory.begin() + 3900, node.memory.begin() + 150));
}

TEST_P(VerbsConformanceTest, ASendLongerThanItsReceiveFailsBothSides) {
  Link link(node, client, {}, {});
  const std::array small = {client.piece(0, 16)};
  ASSERT_TRUE(link.b->post_receive(small, 71));
  const Piece piece = node.piece(0, 17);
  EXPECT_THAT(status_of({.opcode = Opcode::kSend, .pieces = std::span(&piece, 1)}, link),
              AnyOf(Status::kRemoteRequest, Status::kRemoteOperation));
  const auto got = world->collect(*client.queue, 1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_NE(got[0].status, Status::kSuccess);
  EXPECT_TRUE(std::equal(client.memory.begin() + 16, client.memory.end(), client_before.begin() + 16));
}

TEST_P(VerbsConformanceTest, ASendWithoutReceiveFailsAfterItsRetries) {
  Side other(*world, world->client_device());
  Link link(node, other, {}, {});
  const Piece piece = node.piece(0, 17);
  EXPECT_EQ(status_of({.opcode = Opcode::kSend, .pieces = std::span(&piece, 1)}, link), Status::kNotReadyExceeded);
}

TEST_P(VerbsConformanceTest, NothingIsTouchedThroughAWrongKey) {
  const Piece piece = node.piece(0, 4096);
  for (const Opcode opcode : {Opcode::kWrite, Opcode::kRead}) {
    Request request = write(std::span(&piece, 1), 0);
    request.opcode = opcode;
    request.rkey ^= 0x00010001;
    EXPECT_EQ(status_of(request), Status::kRemoteAccess);
  }
  EXPECT_EQ(client.memory, client_before);
  EXPECT_EQ(node.memory, node_before);
}

TEST_P(VerbsConformanceTest, NothingIsTouchedBeyondTheRegion) {
  const std::size_t size = client.memory.size();
  const Piece piece = node.piece(0, 4096);
  for (const Opcode opcode : {Opcode::kWrite, Opcode::kRead}) {
    for (const std::uint64_t address : {client.address() - 1, client.address() + size - 4095, client.address() + size,
                                        std::uint64_t{0}, ~std::uint64_t{0} - 100}) {
      Request request = write(std::span(&piece, 1), 0);
      request.opcode = opcode;
      request.remote_address = address;
      EXPECT_EQ(status_of(request), Status::kRemoteAccess) << address - client.address();
    }
  }
  EXPECT_EQ(client.memory, client_before);
  EXPECT_EQ(node.memory, node_before);
  EXPECT_EQ(status_of(write(std::span(&piece, 1), size - 4096)), Status::kSuccess);  // the last that fits
}

TEST_P(VerbsConformanceTest, NothingIsTouchedAfterTheRegionIsGone) {
  const Piece piece = node.piece(0, 4096);
  const Request request = write(std::span(&piece, 1), 0);
  Link link(node, client, {}, kOpen);
  client.region.reset();
  EXPECT_EQ(status_of(request, link), Status::kRemoteAccess);
  EXPECT_EQ(client.memory, client_before);
  client.region = client.domain->register_memory(client.memory, Side::kAll).value();
  EXPECT_NE(client.region->rkey(), request.rkey);
  EXPECT_EQ(status_of(request), Status::kRemoteAccess);  // the old key, with the same memory registered again
  EXPECT_EQ(client.memory, client_before);
}

TEST_P(VerbsConformanceTest, RemoteAccessNeedsTheRegionAndTheQueuePairToAllowIt) {
  const Piece piece = node.piece(0, 100);
  const auto expect = [&](Access region, Access pair, Opcode opcode, Status status) {
    Side other(*world, world->client_device(), 4096, region);
    QueuePairOptions options;
    options.remote = pair;
    Link link(node, other, {}, options);
    const Request request{.opcode = opcode,
                          .pieces = std::span(&piece, 1),
                          .remote_address = other.address(),
                          .rkey = other.region->rkey()};
    EXPECT_EQ(status_of(request, link), status)
        << region.remote_write << region.remote_read << pair.remote_write << pair.remote_read;
  };
  const Access none{.local_write = true};
  const Access writes{.local_write = true, .remote_write = true}, reads{.remote_read = true};
  expect(writes, writes, Opcode::kWrite, Status::kSuccess);
  expect(reads, reads, Opcode::kRead, Status::kSuccess);
  expect(writes, Side::kAll, Opcode::kRead, Status::kRemoteAccess);
  expect(reads, Side::kAll, Opcode::kWrite, Status::kRemoteAccess);
  expect(none, Side::kAll, Opcode::kWrite, Status::kRemoteAccess);
  // The queue pair refuses what the region would allow: as an invalid request with some devices.
  for (const Opcode opcode : {Opcode::kWrite, Opcode::kRead}) {
    Link link(node, client, {}, {});
    Request request = write(std::span(&piece, 1), 0);
    request.opcode = opcode;
    EXPECT_THAT(status_of(request, link), AnyOf(Status::kRemoteAccess, Status::kRemoteRequest));
  }
  EXPECT_EQ(client.memory, client_before);
}

TEST_P(VerbsConformanceTest, AKeyOfAnotherDomainOpensNothing) {
  Side other(*world, world->client_device());
  const auto other_before = other.memory;
  const Piece piece = node.piece(0, 100);
  const Request request{
      .pieces = std::span(&piece, 1), .remote_address = other.address(), .rkey = other.region->rkey()};
  EXPECT_EQ(status_of(request), Status::kRemoteAccess);  // through the queue pair of `client`
  EXPECT_EQ(other.memory, other_before);
}

TEST_P(VerbsConformanceTest, OurOwnMemoryIsCheckedToo) {
  const auto expect_local = [&](const Piece& piece, Opcode opcode) {
    Request request = write(std::span(&piece, 1), 0);
    request.opcode = opcode;
    // Devices differ in which local error they report, or report the flush first.
    EXPECT_THAT(status_of(request),
                AnyOf(Status::kLocalProtection, Status::kLocalQueuePair, Status::kLocalAccess, Status::kFlushed));
  };
  Piece wrong = node.piece(0, 100);
  wrong.lkey ^= 0x00010001;
  expect_local(wrong, Opcode::kWrite);
  expect_local(node.piece(node.memory.size() - 99, 100), Opcode::kWrite);
  Side read_only(*world, world->node_device(), 4096, Access{});
  Piece unwritable = read_only.piece(0, 100);
  expect_local(unwritable, Opcode::kRead);  // another domain's lkey, and no local_write
  EXPECT_EQ(client.memory, client_before);
  EXPECT_EQ(read_only.memory, std::vector<std::byte>(4096));
}

TEST_P(VerbsConformanceTest, AFailedBatchFlushesTheRestInOrder) {
  Link link(node, client, {}, kOpen);
  const Piece piece = node.piece(0, 8);
  Request bad = write(std::span(&piece, 1), 0);
  bad.rkey ^= 0x00010001;
  const Request good = write(std::span(&piece, 1), 64);
  const std::array batch = {good, bad, good, good};
  ASSERT_TRUE(link.a->post(batch, 1));
  ASSERT_TRUE(link.a->post(std::span(&good, 1), 2));
  std::vector<Completion> got;
  while (got.empty() || got.back().id != 2) {
    const auto some = world->collect(*node.queue, 1);
    ASSERT_FALSE(some.empty());
    got.insert(got.end(), some.begin(), some.end());
  }
  EXPECT_EQ(got.front().status, Status::kRemoteAccess);
  EXPECT_FALSE(got.front().is_last);
  for (std::size_t i = 1; i < got.size(); ++i) EXPECT_EQ(got[i].status, Status::kFlushed);
  EXPECT_EQ(std::count_if(got.begin(), got.end(), [](const auto& each) { return each.id == 1 && each.is_last; }), 1);
  EXPECT_TRUE(std::equal(node.memory.begin(), node.memory.begin() + 8, client.memory.begin() + 64));
}

TEST_P(VerbsConformanceTest, FailFlushesAndIsIdempotent) {
  Link link(node, client, {}, kOpen);
  const std::array spare = {node.piece(0, 8)};
  ASSERT_TRUE(link.a->post_receive(spare, 90));
  const Piece piece = node.piece(0, 65536);
  const Request request = write(std::span(&piece, 1), 0);
  for (std::uint64_t id = 1; id <= 32; ++id) ASSERT_TRUE(link.a->post(std::span(&request, 1), id));
  ASSERT_TRUE(link.a->fail());
  ASSERT_TRUE(link.a->fail());
  const auto got = world->collect(*node.queue, 33);
  ASSERT_EQ(got.size(), 33u);  // each has exactly one, as each is the last of its batch
  EXPECT_EQ(std::count_if(got.begin(), got.end(), [](const auto& each) { return each.is_receive; }), 1);
  for (const Completion& each : got) EXPECT_THAT(each.status, AnyOf(Status::kSuccess, Status::kFlushed));
  EXPECT_EQ(link.a->state(), QueuePair::State::kError);
}

TEST_P(VerbsConformanceTest, WhatFailedBeforeItWasConnectedIsNotConnectedAnyMore) {
  Link link(node, client, {}, kOpen);
  const auto pair = client.domain->create_queue_pair(*client.queue, kOpen).value();
  ASSERT_TRUE(pair->fail());
  const auto peer = address_of(node.attachment, link.a->number(), /*first_psn=*/1);
  EXPECT_FALSE(pair->connect(peer, path_to(client.attachment, /*first_psn=*/2, peer)));
  EXPECT_EQ(pair->state(), QueuePair::State::kError);
}

TEST_P(VerbsConformanceTest, PostRefusesWhatIsOverALimit) {
  QueuePairOptions options;
  options.request_count_max = 4;
  options.piece_count_max = 2;
  options.receive_count_max = 1;
  Link link(node, client, options, kOpen);
  const Piece piece = node.piece(0, 8);
  const Request good = write(std::span(&piece, 1), 0);
  const std::array pieces = {piece, piece, piece};
  const Request wide = write(pieces, 0);
  EXPECT_EQ(link.a->post({}, 1).error(), Errc::kBadRequest);
  EXPECT_EQ(link.a->post(std::span(&wide, 1), 1).error(), Errc::kBadRequest);
  EXPECT_EQ(link.a->post(std::span(&good, 1), 1ull << 63).error(), Errc::kBadRequest);
  const std::array five = {good, good, good, good, good};
  EXPECT_EQ(link.a->post(five, 1).error(), Errc::kBusy);
  ASSERT_TRUE(link.a->post(std::span(five).first(3), 1));
  EXPECT_EQ(link.a->post(std::span(five).first(2), 2).error(), Errc::kBusy);
  ASSERT_TRUE(link.a->post(std::span(five).first(1), 3));
  EXPECT_EQ(world->collect(*node.queue, 2).size(), 2u);  // all that was refused left nothing behind
  ASSERT_TRUE(link.a->post(std::span(five).first(4), 4));
  EXPECT_EQ(world->collect(*node.queue, 1).size(), 1u);
  EXPECT_TRUE(link.a->post_receive(std::span(&piece, 1), 5));
  EXPECT_EQ(link.a->post_receive(std::span(&piece, 1), 6).error(), Errc::kBusy);
  const auto unconnected = node.domain->create_queue_pair(*node.queue, {}).value();
  EXPECT_EQ(unconnected->state(), QueuePair::State::kInit);
  EXPECT_EQ(unconnected->post(std::span(&good, 1), 1).error(), Errc::kBadRequest);
}

TEST_P(VerbsConformanceTest, RefusalsNameFieldAndValue) {
  Failure failure;
  failure = node.domain->register_memory({}, {}).error();
  EXPECT_EQ(failure, Errc::kBadRequest);
  EXPECT_THAT(failure.text, HasSubstr("bytes: 0"));
  failure = node.domain->register_memory(node.memory, {.remote_write = true}).error();
  EXPECT_EQ(failure, Errc::kBadRequest);
  EXPECT_THAT(failure.text, HasSubstr("remote_write"));
  QueuePairOptions options;
  options.piece_count_max = 100000;
  failure = node.domain->create_queue_pair(*node.queue, options).error();
  EXPECT_EQ(failure, Errc::kTooLarge);
  EXPECT_THAT(failure.text, HasSubstr("piece_count_max: 100000"));
  options = {};
  options.port = 9;
  failure = node.domain->create_queue_pair(*node.queue, options).error();
  EXPECT_EQ(failure, Errc::kBadRequest);
  EXPECT_THAT(failure.text, HasSubstr("port: 9"));
  const auto pair = node.domain->create_queue_pair(*node.queue, {}).value();
  for (const std::uint8_t retries : {std::uint8_t{0}, std::uint8_t{7}}) {
    Path path = path_to(node.attachment, 1, address_of(client.attachment, 1, 1));
    path.retry_count = retries;
    failure = pair->connect(address_of(client.attachment, 1, 1), path).error();
    EXPECT_EQ(failure, Errc::kBadRequest);
    EXPECT_THAT(failure.text, HasSubstr("retry_count: " + std::to_string(retries)));
  }
  const auto small = node.device->create_completion_queue(1).value();
  options = {};
  options.request_count_max = 4000;
  failure = node.domain->create_queue_pair(*small, options).error();
  EXPECT_EQ(failure, Errc::kTooLarge);
  EXPECT_THAT(failure.text, HasSubstr("no room"));
}

TEST_P(VerbsConformanceTest, TheDescriptorTellsOfTheNextCompletion) {
  Link link(node, client, {}, kOpen);
  const auto is_readable = [&] {
    pollfd waiting{node.queue->descriptor(), POLLIN, 0};
    return ::poll(&waiting, 1, 0) == 1;
  };
  const Piece piece = node.piece(0, 8);
  const Request request = write(std::span(&piece, 1), 0);
  ASSERT_TRUE(link.a->post(std::span(&request, 1), 1));
  ASSERT_EQ(world->collect(*node.queue, 1).size(), 1u);
  EXPECT_FALSE(is_readable());  // not armed
  ASSERT_TRUE(node.queue->arm());
  EXPECT_FALSE(is_readable());
  ASSERT_TRUE(link.a->post(std::span(&request, 1), 2));
  while (!is_readable()) ASSERT_TRUE(world->wait_some());
  ASSERT_TRUE(node.queue->take_events());
  EXPECT_FALSE(is_readable());
  EXPECT_EQ(world->collect(*node.queue, 1).size(), 1u);
  ASSERT_TRUE(link.a->post(std::span(&request, 1), 3));
  ASSERT_EQ(world->collect(*node.queue, 1).size(), 1u);
  EXPECT_FALSE(is_readable());  // armed once, told once
}

TEST_P(VerbsConformanceTest, APeerThatIsGoneExceedsTheRetries) {
  Link link(node, client, {}, kOpen);
  link.b.reset();
  const Piece piece = node.piece(0, 8);
  EXPECT_EQ(status_of(write(std::span(&piece, 1), 0), link), Status::kRetryExceeded);
  EXPECT_EQ(client.memory, client_before);
}

TEST_P(VerbsConformanceTest, ADmabufIsRegisteredOrRefusedAsUnsupported) {
  const Descriptor memory(::memfd_create("kvstore-dmabuf", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 8192), 0);
  const auto region = client.domain->register_dmabuf(memory.get(), 4096, 4096, 0x10000, Side::kAll);
  if (!region) {
    EXPECT_EQ(region.error(), Errc::kUnsupported);
    EXPECT_FALSE(region.error().text.empty());
    return;
  }
  const Piece piece = node.piece(0, 100);
  EXPECT_EQ(status_of({.pieces = std::span(&piece, 1), .remote_address = 0x10000 + 50, .rkey = (*region)->rkey()}),
            Status::kSuccess);
  std::vector<std::byte> landed(100);
  ASSERT_EQ(::pread(memory.get(), landed.data(), 100, 4096 + 50), 100);
  EXPECT_TRUE(std::equal(landed.begin(), landed.end(), node.memory.begin()));
}

INSTANTIATE_TEST_SUITE_P(Providers, VerbsConformanceTest, testing::ValuesIn(provider_names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace kv::verbs
