#include "tests/attack/hostile_node.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "base/checksum.h"
#include "tests/client/real_nodes.h"

namespace kv::attack {
namespace {

constexpr std::chrono::milliseconds kUnreadFor{250};  ///< Longer than the calls of the tests may take.

template <class Build>
Bytes table_of(Build build) {
  FlatBufferBuilder builder;
  builder.Finish(build(builder));
  const auto bytes = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  return Bytes(bytes.begin(), bytes.end());
}

std::vector<BlockHash> hashes_of(const flatbuffers::Vector<const wire::Hash*>* hashes) {
  std::vector<BlockHash> all(hashes == nullptr ? 0 : hashes->size());
  if (!all.empty()) std::memcpy(static_cast<void*>(all.data()), hashes->data(), all.size() * sizeof(BlockHash));
  return all;
}

}  // namespace

struct HostileNode::Frame {
  FrameHeader header;
  Bytes table, payload;
  template <class Table>
  const Table& as() const {
    const Table* const read = read_table<Table>(table);
    if (read == nullptr) throw std::runtime_error("the client's table fails verification");
    return *read;
  }
};

struct HostileNode::Reply {
  FrameType type{};
  std::uint64_t id = 0;
  std::uint16_t flags = kFrameResponse;
  Bytes table, payload;
  std::optional<std::uint64_t> payload_claimed = {};
  std::optional<std::uint32_t> table_claimed = {};
  bool has_wrong_checksum = false;
};

struct HostileNode::Connection {
  struct Put {
    std::vector<BlockHash> hashes;
    std::vector<std::uint64_t> offsets;
    std::uint32_t region = 0;
    std::size_t arrived = 0;
  };
  int fd = -1;
  std::mt19937_64 random;
  std::size_t written = 0;
  bool is_unread = false;  ///< Something may still be there that was not read on purpose.
  Descriptor descriptor;   ///< That came last.
  std::map<std::uint32_t, std::unique_ptr<MappedRegion>> regions;
  std::map<std::uint64_t, Put> puts;
  std::thread thread;
};

HostileNode::HostileNode(bool is_tcp, NamespaceRecord record, Script script)
    : record_(std::move(record)), script_(script) {
  if (is_tcp) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("bind failed");
    endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  } else {
    directory_ = std::filesystem::temp_directory_path() / "kvstore-hostile-XXXXXX";
    if (::mkdtemp(directory_.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/node";
    std::memcpy(address.sun_path, path.data(), path.size());
    if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("bind failed");
    endpoint_ = "unix://" + path;
  }
  if (::listen(listener_, 100) != 0) throw std::runtime_error("listen failed");
  acceptor_ = std::thread([this] { accept_all(); });
}

HostileNode::~HostileNode() {
  is_over_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (const auto& each : connections_) ::shutdown(each->fd, SHUT_RDWR);
  for (const auto& each : connections_) {
    each->thread.join();
    ::close(each->fd);
  }
  ::close(listener_);
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

void HostileNode::accept_all() {
  while (!is_over_) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    auto& connection = *connections_.emplace_back(std::make_unique<Connection>());
    connection.fd = fd;
    connection.random.seed(script_.seed + connections_.size());
    connection.thread = std::thread([this, &connection] {
      serve(connection);
      ::shutdown(connection.fd, SHUT_RDWR);
    });
  }
}

void HostileNode::serve(Connection& connection) {
  if (script_.cut_after_bytes == 0) return;
  for (Frame frame; read_frame(connection, frame);) {
    Misdeed misdeed = frame.header.type == script_.type ? script_.misdeed : Misdeed::kNone;
    if (script_.is_random) {
      const bool is_honest = connection.random() % 3 != 0;
      misdeed = is_honest ? Misdeed::kNone : static_cast<Misdeed>(connection.random() % kMisdeedCount);
    }
    if (!answer(connection, frame, misdeed)) break;
  }
  if (connection.is_unread) --unread_count_;
}

bool HostileNode::pause(std::chrono::milliseconds time) const {
  for (; time.count() > 0 && !is_over_; time -= std::chrono::milliseconds(5))
    std::this_thread::sleep_for(std::min(time, std::chrono::milliseconds(5)));
  return !is_over_;
}

// -- what an honest node says

std::vector<HostileNode::Reply> HostileNode::honest(Connection& connection, const Frame& frame) {
  const FrameType type = frame.header.type;
  const std::uint64_t id = frame.header.request_id;
  const auto one = [&](Bytes table, std::uint16_t more = 0) {
    std::vector<Reply> replies(1);
    replies[0].type = type == FrameType::kPutData ? FrameType::kPut : type;
    replies[0].id = id;
    replies[0].flags = static_cast<std::uint16_t>(kFrameResponse | more);
    replies[0].table = std::move(table);
    return replies;
  };
  switch (type) {
    case FrameType::kHello:
      return one(table_of([](FlatBufferBuilder& b) {
        const std::vector<std::uint8_t> instance(kInstanceBytes, 1);
        return wire::CreateHelloResponseDirect(b, kWireVersion, "hostile", 0, 1 << 20, 65536, 64, 1ull << 30, 0, false,
                                               &instance);
      }));
    case FrameType::kOpen:
      return one(table_of([&](FlatBufferBuilder& b) {
        const NamespaceId name = record_.id();
        const auto* const bytes = reinterpret_cast<const std::uint8_t*>(name.bytes.data());
        return wire::CreateOpenResponse(b, 1, record_.block_bytes(), b.CreateVector(bytes, name.bytes.size()));
      }));
    case FrameType::kMatch: {
      const auto count = static_cast<std::uint32_t>(hashes_of(frame.as<wire::MatchRequest>().hashes()).size());
      return one(table_of([&](FlatBufferBuilder& b) {
        return wire::CreateMatchResponse(b, count, 0, 7, 1'000'000, 0, 0, nullptr, 0, 9);
      }));
    }
    case FrameType::kClusterMap:  // of no cluster
      return one(table_of([&](FlatBufferBuilder& b) { return wire::CreateClusterMapResponse(b); }));
    case FrameType::kHotRoots:
      return one(table_of([&](FlatBufferBuilder& b) {
        const std::vector<wire::Hash> blocks(3);
        return wire::CreateHotRootsResponseDirect(b, 9, &blocks);
      }));
    case FrameType::kGet: return get(connection, frame, Misdeed::kNone);
    case FrameType::kPut: {
      const auto& request = frame.as<wire::PutRequest>();
      Connection::Put put;
      put.hashes = hashes_of(request.hashes());
      put.region = request.region();
      if (request.offsets() != nullptr) put.offsets.assign(request.offsets()->begin(), request.offsets()->end());
      const auto count = static_cast<std::uint32_t>(put.hashes.size());
      connection.puts[id] = std::move(put);
      return one(table_of([&](FlatBufferBuilder& b) { return wire::CreatePutWant(b, 0, count); }), kFrameMore);
    }
    case FrameType::kPutData: {
      const auto found = connection.puts.find(id);
      if (found == connection.puts.end()) return {};
      auto& put = found->second;
      const std::size_t count = frame.as<wire::PutData>().block_count(), bytes = record_.block_bytes();
      Bytes expected(bytes);
      for (std::size_t i = 0; i < count && put.arrived < put.hashes.size(); ++i, ++put.arrived) {
        if (put.region != 0 || frame.payload.size() != count * bytes) continue;
        fill_block(put.hashes[put.arrived], expected);
        if (std::memcmp(expected.data(), frame.payload.data() + i * bytes, bytes) != 0) ++wrong_block_count_;
      }
      if (put.arrived < put.hashes.size()) return {};
      const auto stored = static_cast<std::uint32_t>(put.hashes.size());
      connection.puts.erase(found);
      return one(table_of([&](FlatBufferBuilder& b) { return wire::CreatePutResponse(b, stored); }));
    }
    case FrameType::kCancel: {
      const std::uint64_t which = frame.as<wire::CancelRequest>().request_id();
      if (connection.puts.erase(which) == 0) return {};
      auto replies = one(table_of([](FlatBufferBuilder& b) {
                           return wire::CreateErrorDirect(b, static_cast<std::uint16_t>(Errc::kCancelled), "cancelled");
                         }),
                         kFrameError);
      replies[0].type = FrameType::kPut;
      replies[0].id = which;
      return replies;
    }
    case FrameType::kTouch:
    case FrameType::kRetain:
    case FrameType::kUnretain:
    case FrameType::kDrop: return one(table_of([](FlatBufferBuilder& b) { return wire::CreateCountResponse(b, 1); }));
    case FrameType::kRegionAdd: {
      const auto handle = static_cast<std::uint32_t>(connection.regions.size() + 1);
      auto mapped = MappedRegion::map(std::exchange(connection.descriptor, Descriptor()),
                                      frame.as<wire::RegionAddRequest>().bytes());
      if (!mapped) throw std::runtime_error(mapped.error().text);
      connection.regions[handle] = std::move(*mapped);
      return one(table_of([&](FlatBufferBuilder& b) { return wire::CreateRegionResponse(b, handle); }));
    }
    case FrameType::kAdmin:
      return one(table_of([](FlatBufferBuilder& b) {
        return wire::CreateAdminResponseDirect(b, "{\"values\":{\"blocks\":1},\"namespaces\":[]}");
      }));
    default: return one(table_of([](FlatBufferBuilder& b) { return wire::CreateEmptyResponse(b); }));
  }
}

/// The parts of a get: inline, or in lent memory.
std::vector<HostileNode::Reply> HostileNode::get(Connection& connection, const Frame& frame, Misdeed misdeed) {
  const auto& request = frame.as<wire::GetRequest>();
  const auto hashes = hashes_of(request.hashes());
  const auto region = connection.regions.find(request.region());
  const bool is_inline = region == connection.regions.end();
  const std::size_t bytes = record_.block_bytes(), stripes = stripe_count(bytes);
  Reply part{.type = FrameType::kGet, .id = frame.header.request_id, .flags = kFrameResponse | kFrameMore};
  std::vector<std::uint64_t> sums(hashes.size() * stripes);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const BlockHash& told = misdeed == Misdeed::kOthersBytes ? hashes[(i + 1) % hashes.size()] : hashes[i];
    Bytes block(bytes);
    fill_block(told, block);
    block_checksums(checksum_seed(record_.id(), told), block, std::span(sums).subspan(i * stripes, stripes));
    if (misdeed == Misdeed::kWrongSums) sums[i * stripes] ^= 1;
    if (is_inline) {
      part.payload.insert(part.payload.end(), block.begin(), block.end());
    } else if (misdeed != Misdeed::kNotLanded && request.offsets() != nullptr) {
      std::memcpy(region->second->bytes().data() + request.offsets()->Get(static_cast<unsigned>(i)), block.data(),
                  bytes);
    }
  }
  const auto count = static_cast<std::uint32_t>(hashes.size());
  part.table = table_of([&](FlatBufferBuilder& b) { return wire::CreateGetPartDirect(b, 0, 0, count, &sums); });
  Reply last{.type = FrameType::kGet, .id = part.id, .flags = kFrameResponse};
  last.table = table_of([&](FlatBufferBuilder& b) { return wire::CreateGetResponse(b, count); });
  std::vector<Reply> replies;
  replies.push_back(std::move(part));
  replies.push_back(std::move(last));
  return replies;
}

// -- what this one says

/// Numbers that are right in form and wrong in what they mean.
std::vector<HostileNode::Reply> HostileNode::lie(Connection& connection, const Frame& frame, Misdeed misdeed) {
  if (frame.header.type == FrameType::kGet && misdeed != Misdeed::kBeyond && misdeed != Misdeed::kHugeNumbers &&
      misdeed != Misdeed::kZeroes)
    return get(connection, frame, misdeed);
  auto replies = honest(connection, frame);
  const std::uint64_t number = misdeed == Misdeed::kHugeNumbers ? ~std::uint64_t{0}
                               : misdeed == Misdeed::kBeyond    ? 65
                                                                : 0;
  const auto small = static_cast<std::uint32_t>(number);
  if (misdeed != Misdeed::kHugeNumbers && misdeed != Misdeed::kBeyond && misdeed != Misdeed::kZeroes) return replies;
  for (Reply& reply : replies) {
    reply.table = table_of([&](FlatBufferBuilder& b) -> flatbuffers::Offset<void> {
      const bool is_more = (reply.flags & kFrameMore) != 0;
      switch (frame.header.type) {
        case FrameType::kHello:
          return wire::CreateHelloResponseDirect(b, static_cast<std::uint8_t>(number), "hostile", number, small, small,
                                                 small, number, small)
              .Union();
        case FrameType::kOpen: return wire::CreateOpenResponse(b, small, number).Union();
        case FrameType::kMatch:
          return wire::CreateMatchResponse(b, small, small, number, number, 0xFFFF, small, nullptr, 0, number, number)
              .Union();
        case FrameType::kClusterMap: {  // this very node, under a name of its own; or lies in each field
          const std::vector<std::string> endpoints(small % 20, "tcp://127.0.0.1:1");
          const auto list = b.CreateVectorOfStrings(endpoints);
          const std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes(
              small % 5000, wire::CreateClusterNode(b, b.CreateString("x"), list, static_cast<double>(number),
                                                    static_cast<std::uint8_t>(number)));
          return wire::CreateClusterMapResponse(b, number, small, b.CreateVector(nodes)).Union();
        }
        case FrameType::kHotRoots: {
          const std::vector<wire::Hash> blocks(small % 10'000);
          return wire::CreateHotRootsResponseDirect(b, number, &blocks).Union();
        }
        case FrameType::kGet: {
          const std::vector<std::uint64_t> sums(small % 1000);
          if (is_more) return wire::CreateGetPartDirect(b, small, small, small, &sums).Union();
          return wire::CreateGetResponse(b, small, small).Union();
        }
        case FrameType::kPut: return wire::CreatePutWant(b, small, small).Union();
        case FrameType::kPutData: return wire::CreatePutResponse(b, small, small, small, 0xFFFF, small).Union();
        case FrameType::kRegionAdd: return wire::CreateRegionResponse(b, small).Union();
        default: return wire::CreateCountResponse(b, number).Union();
      }
    });
  }
  return replies;
}

bool HostileNode::answer(Connection& connection, const Frame& frame, Misdeed misdeed) {
  auto& random = connection.random;
  std::vector<Reply> replies =
      misdeed >= Misdeed::kWrongSums ? lie(connection, frame, misdeed) : honest(connection, frame);
  if (replies.empty()) return true;
  Reply& first = replies.front();
  const Reply as_it_was = first;
  const auto refusal = [&](std::uint16_t code) {
    Reply reply{.type = as_it_was.type, .id = as_it_was.id, .flags = kFrameResponse | kFrameError};
    reply.table = table_of([&](FlatBufferBuilder& b) { return wire::CreateErrorDirect(b, code, "hostile"); });
    return reply;
  };
  const auto no_namespace = static_cast<std::uint16_t>(Errc::kNoNamespace);
  std::size_t piece_bytes = SIZE_MAX;
  switch (misdeed) {
    case Misdeed::kSilence: return true;
    case Misdeed::kClose: return false;
    case Misdeed::kError: replies = {refusal(static_cast<std::uint16_t>(1 + random() % 17))}; break;
    case Misdeed::kErrorOfNoCode: replies = {refusal(0), refusal(0xFFFF)}; break;
    case Misdeed::kLastFirst: first.flags = kFrameResponse; break;
    case Misdeed::kTwice: replies.insert(replies.end(), replies.begin(), replies.end()); break;
    case Misdeed::kNeverLast:
      for (Reply& each : replies) each.flags |= kFrameMore;
      break;
    case Misdeed::kOtherId:
      for (Reply& each : replies) each.id += random() % 2 == 0 ? 1 : random();
      break;
    case Misdeed::kOtherType: first.type = static_cast<FrameType>(random() % (kFrameTypeMax + 2)); break;
    case Misdeed::kRequestFlags: first.flags = static_cast<std::uint16_t>(random() % 2 == 0 ? 0 : 0xFFF8); break;
    case Misdeed::kUnasked:
      for (int i = 0; i < 50; ++i) {
        Reply unasked = as_it_was;
        unasked.id = random() % 100;
        unasked.type = static_cast<FrameType>(1 + random() % kFrameTypeMax);
        replies.push_back(unasked);
      }
      break;
    case Misdeed::kEmptyTable: first.table.clear(); break;
    case Misdeed::kGarbageTable:
      first.table.resize(random() % 200);
      for (auto& byte : first.table) byte = static_cast<std::byte>(random());
      break;
    case Misdeed::kTableOfAnotherRequest:
      first.table = table_of([](FlatBufferBuilder& b) { return wire::CreateErrorDirect(b, 3, "an error"); });
      break;
    case Misdeed::kChangedWords: {
      const std::uint64_t values[] = {0, ~std::uint64_t{0}, 1, random()};
      for (std::size_t at = random() % 8; at + 4 <= first.table.size(); at += 4 + random() % 16)
        std::memcpy(first.table.data() + at, &values[random() % 4], 4);
      break;
    }
    case Misdeed::kHugeTableBytes: first.table_claimed = 0xFFFFFFFF >> random() % 12; break;
    case Misdeed::kHugePayloadBytes: first.payload_claimed = ~std::uint64_t{0} >> random() % 40; break;
    case Misdeed::kPayload: first.payload.resize(first.payload.size() + 1 + random() % 100'000); break;
    case Misdeed::kShortPayload: first.payload.resize(first.payload.size() / 2); break;
    case Misdeed::kCutPayload:
      first.payload_claimed = first.payload.size();
      first.payload.resize(first.payload.size() / 2);
      replies.resize(1);
      break;
    case Misdeed::kNoise:
      for (int i = 0; i < 3; ++i) {
        Bytes noise(1000);
        for (auto& byte : noise) byte = static_cast<std::byte>(random());
        if (!write_bytes(connection, noise, SIZE_MAX)) return false;
      }
      break;
    case Misdeed::kWrongChecksum: first.has_wrong_checksum = true; break;
    case Misdeed::kDrip: piece_bytes = 1 + first.payload.size() / 100; break;
    default: break;
  }
  for (const Reply& each : replies) {
    if (!write(connection, each, piece_bytes)) return false;
  }
  if (misdeed != Misdeed::kStopsReading && misdeed != Misdeed::kErrorWhileUnread &&
      misdeed != Misdeed::kCloseWhileUnread)
    return true;
  if (!std::exchange(connection.is_unread, true)) ++unread_count_;
  bool goes_on = pause(std::chrono::milliseconds(20)) && misdeed != Misdeed::kCloseWhileUnread;
  if (misdeed == Misdeed::kErrorWhileUnread) goes_on = goes_on && write(connection, refusal(no_namespace));
  return goes_on && pause(kUnreadFor);
}

// -- bytes

bool HostileNode::write(Connection& connection, const Reply& reply, std::size_t piece_bytes) {
  FrameHeader header;
  header.type = reply.type;
  header.flags = reply.flags;
  header.request_id = reply.id;
  header.payload_bytes = reply.payload_claimed.value_or(reply.payload.size());
  Bytes bytes(kFrameHeaderBytes);
  encode_frame_header(header, reply.table, std::span<std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
  if (reply.table_claimed) std::memcpy(bytes.data() + 16, &*reply.table_claimed, 4);
  if (reply.has_wrong_checksum) bytes[20] ^= std::byte{1};
  bytes.insert(bytes.end(), reply.table.begin(), reply.table.end());
  bytes.insert(bytes.end(), reply.payload.begin(), reply.payload.end());
  return write_bytes(connection, bytes, piece_bytes);
}

bool HostileNode::write_bytes(Connection& connection, std::span<const std::byte> bytes, std::size_t piece_bytes) {
  while (!bytes.empty()) {
    const std::size_t room = script_.cut_after_bytes - connection.written;
    const ssize_t sent = ::send(connection.fd, bytes.data(), std::min({bytes.size(), piece_bytes, room}), MSG_NOSIGNAL);
    if (sent <= 0 || is_over_) return false;
    connection.written += static_cast<std::size_t>(sent);
    if (connection.written == script_.cut_after_bytes) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
    if (piece_bytes != SIZE_MAX && !pause(std::chrono::milliseconds(5))) return false;
  }
  return true;
}

bool HostileNode::read_frame(Connection& connection, Frame& frame) {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  if (!read_exactly(connection, bytes.data(), bytes.size())) return false;
  const auto header = decode_frame_header(bytes, {.table_bytes_max = 64u << 20, .payload_bytes_max = 1u << 30});
  if (!header) throw std::runtime_error("the client's frame is none: " + header.error().text);
  frame.header = *header;
  frame.table.resize(header->table_bytes);
  frame.payload.resize(header->payload_bytes);
  return read_exactly(connection, frame.table.data(), frame.table.size()) &&
         read_exactly(connection, frame.payload.data(), frame.payload.size());
}

bool HostileNode::read_exactly(Connection& connection, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    pollfd waiting{connection.fd, POLLIN, 0};
    if (connection.is_unread && ::poll(&waiting, 1, 50) == 0) {  // all of it has come
      connection.is_unread = false;
      --unread_count_;
    }
    iovec part{to, bytes};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(connection.fd, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0 || is_over_) return false;
    if (const cmsghdr* const head = CMSG_FIRSTHDR(&message); head != nullptr && head->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
      connection.descriptor = Descriptor(fd);
    }
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace kv::attack
