// The admin server beside HTTP clients and proxies: each request gets an answer, or a refusal with a status.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/node_process.h"

namespace kv::e2e {
namespace {

/// All that the server at 127.0.0.1:PORT answers to these bytes. The client has no more to say, and reads to the end.
std::string answer_to(const std::string& address, const std::string& bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  ::shutdown(fd, SHUT_WR);
  std::string answer;
  char part[4096];
  for (ssize_t count; (count = ::recv(fd, part, sizeof part, 0)) > 0;)
    answer.append(part, static_cast<std::size_t>(count));
  ::close(fd);
  return answer;
}

TEST(OperationAdminHttpTest, EachRequestIsAnsweredOrRefusedWithAStatus) {
  const NodeProcess node({"--capacity=16MiB"});
  const std::string host = "Host: " + node.admin() + "\r\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"GET /healthz HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", "200"},
      {"GET /healthz HTTP/1.0\r\n\r\n", "200"},
      {"GET http://" + node.admin() + "/healthz HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", "200"},
      {"GET https://node.example.org/healthz?from=proxy HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", "200"},
      {"GET http://" + node.admin() + " HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", "200"},
      {"HEAD /healthz HTTP/1.1\r\n" + host + "Content-Length: 0\r\nConnection: close\r\n\r\n", "200"},
      {"OPTIONS * HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", "405"},
      {"GET /healthz HTTP/1.1\r\n" + host + "Content-Length: 2\r\n\r\n{}", "413"},
      {"POST /config/set HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "413"},
      {"GET /healthz HTTP/1.1\r\n" + host + "Cookie: " + std::string(9000, 'c') + "\r\n\r\n", "431"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
      {"hello\r\n\r\n", "400"},
      {"GET /healthz HTTP/1.1\r\n: x\r\n\r\n", "400"},
  };
  for (const auto& [request, status] : cases) {
    const std::string answer = answer_to(node.admin(), request);
    EXPECT_THAT(answer, testing::MatchesRegex("HTTP/1\\.[01] " + status + " .*")) << request.substr(0, 100);
  }
}

}  // namespace
}  // namespace kv::e2e
