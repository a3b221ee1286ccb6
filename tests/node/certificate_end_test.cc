// How long a session is for who opened it.
#include <gtest/gtest.h>

#include "tests/node/limits_change.h"
#include "tests/node/node_world.h"

namespace kv {
namespace {

/// A client that has shown a certificate.
class CertifiedStream final : public Stream {
 public:
  CertifiedStream(std::unique_ptr<Stream> inner, std::chrono::system_clock::time_point end)
      : inner_(std::move(inner)), end_(end) {}
  Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) override { return inner_->try_read(to); }
  Result<std::size_t> try_write(std::span<const asio::const_buffer> from) override { return inner_->try_write(from); }
  Async<void> wait_readable() override { return inner_->wait_readable(); }
  Async<void> wait_writable() override { return inner_->wait_writable(); }
  void close() override { inner_->close(); }
  std::string peer() const override { return inner_->peer(); }
  std::optional<std::chrono::system_clock::time_point> peer_certificate_end() const override { return end_; }

 private:
  std::unique_ptr<Stream> inner_;
  std::chrono::system_clock::time_point end_;
};

class CertificateEndTest : public NodeTest {
 protected:
  CertificateEndTest() {
    wrap_accepted = [this](std::unique_ptr<Stream> inner) {
      return std::make_unique<CertifiedStream>(std::move(inner), std::chrono::system_clock::now() + lasts);
    };
    change(node->limits)->certificate_grace = 300s;
  }
  std::chrono::hours lasts{1};
};

TEST_F(CertificateEndTest, ASessionWithoutTransfersEndsWithItsCertificate) {
  const auto client = greet();
  world.run_for(59min);
  EXPECT_FALSE(client->ask(FrameType::kPing, 5, ping()).is_error()) << "a minute before";
  EXPECT_TRUE(client->ended(3min));
  EXPECT_EQ(metric("kvstore_sessions_closed_total{reason=\"certificate_ended\"}"), 1);
}

TEST_F(CertificateEndTest, ATransferHasTheGraceAndNoMore) {
  const auto client = greet();
  change(node->limits)->put_timeout = 24h;
  const Answer want = client->ask(FrameType::kPut, 100, put_request(chain(1, 2)));
  ASSERT_FALSE(want.is_last());
  world.run_for(64min);
  EXPECT_FALSE(client->ended(0s)) << "its put is under way";
  world.run_until([&] { return session_count == 0; }, 2min);
  EXPECT_EQ(session_count, 0u);
  EXPECT_EQ(metric("kvstore_sessions_closed_total{reason=\"certificate_ended\"}"), 1);
}

TEST_F(CertificateEndTest, WithoutACertificateASessionHasNoEnd) {
  wrap_accepted = nullptr;
  const auto client = greet();
  world.run_for(30h);
  EXPECT_FALSE(client->ask(FrameType::kPing, 5, ping()).is_error());
}

}  // namespace
}  // namespace kv
