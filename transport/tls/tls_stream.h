// transport/tls/tls_stream.h: an encrypting stream over a plain one.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/stream.h"
#include "transport/tls/tls_credentials.h"

struct bio_st;
struct bio_method_st;
struct ssl_st;
struct x509_store_ctx_st;

namespace kv {

/// Bytes enter and leave as records of up to 16 KiB, many in one call:
///
///     caller's pieces -> SSL_write -> out_ (records, up to 128 KiB) -> inner stream
///     caller's memory <- SSL_read  <- OpenSSL's buffer (128 KiB)    <- inner stream
///
///   1. Bytes that try_write took are encrypted already, so the next call may pass other bytes. Bytes that the inner
///      stream refused are held back (Stream::held_bytes), 144 KiB at most.
///   2. wait_readable waits for the inner stream only if no received byte is left to read.
///   3. During a helper's step, the stream belongs to the helper: close() waits for the end of that step.
///   4. Memory for transfers alone is freed at their end: an idle stream keeps 32 KiB beside OpenSSL's state.
/// Thread safety: as Stream.
class TlsStream final : public Stream {
 public:
  /// `server_name`: on a client, the identity the peer must prove: a DNS name, an IP address, or a URI (with "://").
  TlsStream(std::unique_ptr<Stream> inner, std::shared_ptr<const TlsCredentials> credentials,
            const std::string& server_name = "");
  ~TlsStream() override;

  bool needs_handshake() const override { return !is_up_; }
  Async<void> handshake(SlowCalls* helpers) override;

  Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) override;
  Result<std::size_t> try_write(std::span<const asio::const_buffer> from) override;
  std::size_t held_bytes() const override { return out_.size() - out_begin_; }
  Result<void> try_flush() override;
  Async<void> wait_readable() override;
  Async<void> wait_writable() override;
  void close() override;

  std::string peer() const override;
  std::string peer_group() const override { return inner_->peer_group(); }
  std::vector<std::string> peer_names() const override { return peer_names_; }
  std::optional<std::chrono::system_clock::time_point> peer_certificate_end() const override { return peer_end_; }
  Protection protection() const override { return is_up_ ? Protection::kTls : Protection::kNone; }

  /// OpenSSL's callback, for each certificate of the peer's chain, from its root on.
  static int verify(int is_good, x509_store_ctx_st* chain);

 private:
  static const bio_method_st* method();
  static int read_bio(bio_st* bio, char* to, int count);
  static int write_bio(bio_st* bio, const char* from, int count);
  static long control_bio(bio_st* bio, int command, long number, void* pointer);

  struct Step {
    bool is_last = false;
    error_code failed;
  };
  Step take_step();  ///< Of the handshake, as far as the received bytes allow. Any thread, one at a time.
  error_code failure(int why) const;
  void close_now();

  std::unique_ptr<Stream> inner_;
  const std::shared_ptr<const TlsCredentials> credentials_;
  std::string uri_wanted_;
  ssl_st* ssl_ = nullptr;
  std::vector<std::byte> out_;  ///< Records in flight; those before out_begin_ have left.
  std::size_t out_begin_ = 0;
  error_code inner_error_;                 ///< Why reading the inner stream failed.
  error_code read_failed_, write_failed_;  ///< Once set, every later try returns it.
  bool is_named_ = true;                   ///< OpenSSL has accepted the peer's required name.
  bool is_up_ = false, is_closed_ = false;
  bool is_helped_ = false;   ///< Another thread takes a step of the handshake: this object must not be touched.
  bool is_starved_ = false;  ///< The last try_read took all that can be decrypted.
  bool is_drained_ = false;  ///< Within one try_read: the inner stream is empty.
  std::vector<std::string> peer_names_;
  std::optional<std::chrono::system_clock::time_point> peer_end_;
};

}  // namespace kv
