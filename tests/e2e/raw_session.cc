#include "tests/e2e/raw_session.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "transport/endpoint.h"

namespace kv::e2e {

RawSession::RawSession(const std::string& text) {
  const auto endpoint = parse_endpoint(text);
  if (!endpoint) throw std::runtime_error(endpoint.error().text);
  int connected = -1;
  if (endpoint->scheme == Endpoint::Scheme::kUnix) {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, endpoint->host.data(), endpoint->host.size());
    connected = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } else {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::inet_addr(endpoint->host.c_str());
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint->port)));
    connected = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  if (connected != 0) throw std::runtime_error("connect to " + text + ": " + std::strerror(errno));
  const timeval half_a_minute{30, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &half_a_minute, sizeof half_a_minute);
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &half_a_minute, sizeof half_a_minute);
}

RawSession::~RawSession() {
  if (fd_ >= 0) ::close(fd_);
}

RawSession::RawSession(RawSession&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

bool RawSession::send_bytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool RawSession::send_with_descriptor(std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptor)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
  return sent > 0 && send_bytes(bytes.subspan(static_cast<std::size_t>(sent)));
}

bool RawSession::send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                            std::uint64_t payload_bytes) {
  const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  FrameHeader header;
  header.type = type;
  header.request_id = request_id;
  header.payload_bytes = payload_bytes;
  std::vector<std::byte> bytes(kFrameHeaderBytes + table.size());
  encode_frame_header(header, table, std::span(bytes).first<kFrameHeaderBytes>());
  std::memcpy(bytes.data() + kFrameHeaderBytes, table.data(), table.size());
  return send_bytes(bytes);
}

bool RawSession::send_hello(std::uint8_t version_max, const std::string& token) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateHelloRequestDirect(builder, kWireVersion, version_max, "raw",
                                                token.empty() ? nullptr : token.c_str()));
  if (!send_frame(FrameType::kHello, 1, builder)) return false;
  const auto answer = read_answer();
  return answer && !answer->is_error();
}

std::optional<RawSession::Answer> RawSession::read_answer() {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  if (!read_exactly(bytes.data(), bytes.size())) return std::nullopt;
  const auto header =
      decode_frame_header(bytes, {.table_bytes_max = 64u << 20, .payload_bytes_max = std::uint64_t{1} << 40});
  if (!header) throw std::runtime_error("the node's frame is none: " + header.error().text);
  Answer answer;
  answer.header = *header;
  answer.table.resize(header->table_bytes);
  if (!read_exactly(answer.table.data(), answer.table.size())) return std::nullopt;
  answer.payload.resize(header->payload_bytes);
  if (!read_exactly(answer.payload.data(), answer.payload.size())) return std::nullopt;
  return answer;
}

bool RawSession::is_closed() {
  std::array<std::byte, 4096> bytes;
  for (;;) {
    const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (got == 0) return true;
    if (got < 0 && errno != EINTR) return errno == ECONNRESET;
  }
}

std::string RawSession::Answer::error_text() const {
  const auto* error = is_error() ? read_table<wire::Error>(table) : nullptr;
  return error == nullptr || error->message() == nullptr ? "" : error->message()->str();
}

Errc RawSession::Answer::error_code() const {
  const auto* error = is_error() ? read_table<wire::Error>(table) : nullptr;
  return error == nullptr ? Errc{} : static_cast<Errc>(error->code());
}

bool RawSession::read_exactly(void* to, std::size_t bytes) {
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd_, next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace kv::e2e
