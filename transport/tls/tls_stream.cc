#include "transport/tls/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/this_coro.hpp>

#include "base/assert.h"
#include "base/event.h"
#include "transport/slow_calls.h"
#include "transport/tls/tls_identity.h"

namespace kv {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr std::size_t kBatchBytes = 128 * 1024;  ///< Handed to the inner stream at once.
constexpr std::size_t kKeptBytes = 32 * 1024;
/// Bound on one try_write: some 300 us of encrypting. Then the caller may serve others.
constexpr std::size_t kCallBytes = 1 << 20;

bool is_ip_address(const std::string& name) {
  ASN1_OCTET_STRING* const address = a2i_IPADDRESS(name.c_str());
  const bool is_one = address != nullptr;
  ASN1_OCTET_STRING_free(address);
  ERR_clear_error();
  return is_one;
}

/// Index of an SSL's stream. Not its "app data", which Asio uses itself.
int stream_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

/// Whether the only fault is that the CA's own issuer has no list of revoked certificates here. An intermediate CA in
/// tls-ca is trusted by that file, as a root is. But where the file has its issuer too, this side needs that one's
/// list.
bool is_trusted_without_list(X509_STORE_CTX* verification) {
  const STACK_OF(X509)* const chain = X509_STORE_CTX_get0_chain(verification);
  const int depth = X509_STORE_CTX_get_error_depth(verification);
  if (X509_STORE_CTX_get_error(verification) != X509_V_ERR_UNABLE_TO_GET_CRL || chain == nullptr || depth == 0 ||
      depth != sk_X509_num(chain) - 1 || depth < X509_STORE_CTX_get_num_untrusted(verification))
    return false;
  X509* issuer = nullptr;  // a root's is itself
  const bool has_issuer =
      X509_STORE_CTX_get1_issuer(&issuer, verification, X509_STORE_CTX_get_current_cert(verification)) != 0;
  X509_free(issuer);
  return !has_issuer;
}

}  // namespace

TlsStream::TlsStream(std::unique_ptr<Stream> inner, std::shared_ptr<const TlsCredentials> credentials,
                     const std::string& server_name)
    : inner_(std::move(inner)), credentials_(std::move(credentials)), ssl_(SSL_new(credentials_->context())) {
  KV_ASSERT(inner_ != nullptr && ssl_ != nullptr);
  SSL_set_ex_data(ssl_, stream_index(), this);
  BIO* const bio = BIO_new(method());
  KV_ASSERT(bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);  // owns it
  if (credentials_->side() == TlsSide::kNode) {
    SSL_set_accept_state(ssl_);
    return;
  }
  SSL_set_connect_state(ssl_);
  KV_ASSERT(!server_name.empty());  // else any node with a certificate would pass for this one
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(ssl_);
  // Only subject alternative names: a common name is free text. A wildcard stands for one whole label.
  X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  // A peer, a map or an operator may have given the name: if it cannot be set, the handshake fails.
  if (server_name.find("://") != std::string::npos) {
    uri_wanted_ = "uri:" + server_name;
  } else if (is_ip_address(server_name)) {
    is_named_ = X509_VERIFY_PARAM_set1_ip_asc(wanted, server_name.c_str()) == 1;
  } else {
    is_named_ = server_name.find('\0') == std::string::npos &&
                X509_VERIFY_PARAM_set1_host(wanted, server_name.c_str(), 0) == 1 &&
                SSL_set_tlsext_host_name(ssl_, server_name.c_str()) == 1;
  }
  ERR_clear_error();
}

TlsStream::~TlsStream() {
  close();
  SSL_free(ssl_);
}

// -- peer identity

/// The last certificate is the peer's own; at that point the chain, the dates and a DNS name or address are good.
int TlsStream::verify(int is_good, X509_STORE_CTX* chain) {
  if (is_good != 1) {
    if (!is_trusted_without_list(chain)) return 0;
    X509_STORE_CTX_set_error(chain, X509_V_OK);
    return 1;
  }
  const auto* const ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const self = static_cast<TlsStream*>(SSL_get_ex_data(ssl, stream_index()));  // null in the admin server
  if (self != nullptr) {
    const auto end = end_of(*X509_STORE_CTX_get_current_cert(chain));
    self->peer_end_ = std::min(end, self->peer_end_.value_or(end));
  }
  if (X509_STORE_CTX_get_error_depth(chain) != 0) return 1;
  const std::vector<std::string> names = names_of(*X509_STORE_CTX_get_current_cert(chain));
  const std::vector<std::string>& allowed = TlsCredentials::of(*SSL_get_SSL_CTX(ssl)).config().allowed_names;
  bool is_wanted = true;
  if (self != nullptr) {
    is_wanted = self->uri_wanted_.empty() || std::find(names.begin(), names.end(), self->uri_wanted_) != names.end();
    self->peer_names_ = names;
  }
  if (is_wanted && (allowed.empty() || is_allowed(names, allowed))) return 1;
  X509_STORE_CTX_set_error(chain, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

std::string TlsStream::peer() const {
  std::string text = inner_->peer();
  for (std::size_t i = 0; i < std::min<std::size_t>(peer_names_.size(), 4); ++i)
    text += (i == 0 ? " " : ",") + peer_names_[i];
  return text;
}

TlsStream::Step TlsStream::take_step() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  const int why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_, result);
  Step step{.is_last = why == SSL_ERROR_NONE, .failed = {}};
  if (why != SSL_ERROR_NONE && why != SSL_ERROR_WANT_READ) step.failed = failure(why);
  ERR_clear_error();
  return step;
}

Async<void> TlsStream::handshake(SlowCalls* helpers) {
  KV_ASSERT(!is_up_);
  if (!is_named_) co_return TlsErrc::kBadName;
  const auto executor = co_await asio::this_coro::executor;
  while (!is_closed_) {
    Step step{.is_last = false, .failed = asio::error::operation_aborted};  // in case the helpers have finished
    if (helpers == nullptr) {
      step = take_step();
    } else {
      Event done(executor);
      is_helped_ = true;
      const auto take = [this, &step] {
        try {
          step = take_step();
        } catch (...) {  // no memory for the peer's certificates: ends this peer alone
          step = {.is_last = false, .failed = Errc::kOutOfMemory};
        }
      };
      helpers->run(take, executor, [&done] { done.set(); });
      while (!done.is_set()) co_await done.wait();
      is_helped_ = false;
      if (is_closed_) {
        close_now();
        break;
      }
    }
    const auto& [is_last, failed] = step;
    // This side's bytes go out in any case: they may say why the peer is refused.
    while (true) {
      const auto flushed = try_flush();
      if (flushed) break;
      if (flushed.error() != asio::error::would_block) co_return failed ? failed : flushed.error();
      const auto ready = co_await inner_->wait_writable();
      if (!ready) co_return failed ? failed : ready.error();
    }
    if (failed) {
      read_failed_ = write_failed_ = failed;
      co_return failed;
    }
    if (is_last) {
      is_up_ = true;
      co_return Result<void>();
    }
    const auto ready = co_await inner_->wait_readable();
    if (!ready) co_return ready.error();
  }
  co_return error_code(asio::error::operation_aborted);
}

/// Reduces OpenSSL's error sources to one code. Call it before other uses of the error queue.
error_code TlsStream::failure(int why) const {
  if (why == SSL_ERROR_ZERO_RETURN) return asio::error::eof;
  const long verdict = is_up_ ? X509_V_OK : SSL_get_verify_result(ssl_);
  if (verdict != X509_V_OK) return {kTlsRefusedHere + static_cast<int>(verdict), tls_category()};
  const unsigned long code = ERR_peek_last_error();  // of several errors, the root cause
  const int reason = ERR_GET_REASON(code);
  if (ERR_GET_LIB(code) == ERR_LIB_SSL) {
    if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) return TlsErrc::kNoCertificate;
    if (reason >= SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256)
      return {kTlsRefusedThere + reason - SSL_AD_REASON_OFFSET, tls_category()};
    switch (reason) {
      case SSL_R_WRONG_VERSION_NUMBER:
      case SSL_R_HTTP_REQUEST:
      case SSL_R_HTTPS_PROXY_REQUEST:
      case SSL_R_PACKET_LENGTH_TOO_LONG:
      case SSL_R_RECORD_LENGTH_MISMATCH:
        if (!is_up_) return TlsErrc::kNotTls;
        break;
      default: break;
    }
  }
  // The connection's end, without an announcement. Frames have lengths, so truncation is noticed there.
  if (inner_error_) return inner_error_;
  if (code == 0) return asio::error::eof;
  return {static_cast<int>(code), asio::error::get_ssl_category()};
}

// -- bytes

Result<std::size_t> TlsStream::try_read(std::span<const asio::mutable_buffer> to) {
  KV_ASSERT(is_up_);
  if (read_failed_) return read_failed_;
  is_starved_ = is_drained_ = false;
  std::size_t total = 0;
  ERR_clear_error();
  for (const asio::mutable_buffer& buffer : to) {
    for (std::size_t offset = 0; offset < buffer.size();) {
      std::size_t count = 0;
      if (SSL_read_ex(ssl_, static_cast<std::byte*>(buffer.data()) + offset, buffer.size() - offset, &count) == 1) {
        offset += count;
        total += count;
        continue;
      }
      const int why = SSL_get_error(ssl_, 0);
      if (why == SSL_ERROR_WANT_READ) {
        is_starved_ = true;
        if (total == 0) return error_code(asio::error::would_block);
        return total;
      }
      read_failed_ = failure(why);
      ERR_clear_error();
      if (total == 0) return read_failed_;
      return total;
    }
  }
  return total;
}

Result<std::size_t> TlsStream::try_write(std::span<const asio::const_buffer> from) {
  KV_ASSERT(is_up_);
  if (write_failed_) return write_failed_;
  if (const auto flushed = try_flush(); !flushed) return flushed.error();
  std::size_t total = 0;
  ERR_clear_error();
  for (const asio::const_buffer& buffer : from) {
    for (std::size_t offset = 0; offset < buffer.size();) {
      if (out_.size() >= kBatchBytes) {
        const auto flushed = try_flush();
        if (!flushed) {
          // Encrypted and held back. If the stream broke, the next try says so.
          if (total > 0) return total;
          return flushed.error();
        }
      }
      if (total >= kCallBytes) return total;
      const std::size_t want = std::min(buffer.size() - offset, kRecordBytes);
      std::size_t count = 0;
      if (out_.capacity() < want + 512) out_.reserve(std::min(buffer.size() - offset, kBatchBytes) + 2 * kRecordBytes);
      if (SSL_write_ex(ssl_, static_cast<const std::byte*>(buffer.data()) + offset, want, &count) != 1) {
        write_failed_ = failure(SSL_get_error(ssl_, 0));
        ERR_clear_error();
        return write_failed_;
      }
      KV_ASSERT(count == want);  // write_bio() takes all bytes
      offset += count;
      total += count;
    }
  }
  (void)try_flush();  // the rest is held back, or the next try reports the break
  return total;
}

Result<void> TlsStream::try_flush() {
  while (out_begin_ < out_.size()) {
    const asio::const_buffer rest(out_.data() + out_begin_, out_.size() - out_begin_);
    const auto sent = inner_->try_write(std::span(&rest, 1));
    if (!sent) {
      if (sent.error() != asio::error::would_block) write_failed_ = sent.error();
      return sent.error();
    }
    out_begin_ += *sent;
  }
  out_.clear();
  out_begin_ = 0;
  return {};
}

Async<void> TlsStream::wait_readable() {
  if (!is_starved_ || read_failed_) {
    if (is_closed_) co_return error_code(asio::error::operation_aborted);
    co_return Result<void>();
  }
  if (held_bytes() == 0 && out_.capacity() > kKeptBytes) std::vector<std::byte>().swap(out_);  // between requests
  co_return co_await inner_->wait_readable();
}

Async<void> TlsStream::wait_writable() { co_return co_await inner_->wait_writable(); }

/// Sends close_notify if there is room for it, so that the peer can tell an end from a cut.
void TlsStream::close() {
  if (is_closed_) return;
  is_closed_ = true;
  if (!is_helped_) close_now();
}

void TlsStream::close_now() {
  if (is_up_ && !write_failed_ && !(read_failed_ && read_failed_ != asio::error::eof)) {
    SSL_shutdown(ssl_);
    (void)try_flush();
    ERR_clear_error();
  }
  out_.clear();
  out_begin_ = 0;
  read_failed_ = write_failed_ = asio::error::operation_aborted;
  inner_->close();
}

// -- OpenSSL's access to the inner stream

const BIO_METHOD* TlsStream::method() {
  static const BIO_METHOD* const made = [] {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvstore stream");
    KV_ASSERT(method != nullptr);
    BIO_meth_set_read(method, &TlsStream::read_bio);
    BIO_meth_set_write(method, &TlsStream::write_bio);
    BIO_meth_set_ctrl(method, &TlsStream::control_bio);
    return method;
  }();
  return made;
}

int TlsStream::read_bio(BIO* bio, char* to, int count) {
  BIO_clear_retry_flags(bio);
  if (count <= 0) return 0;
  auto* const self = static_cast<TlsStream*>(BIO_get_data(bio));
  if (self->is_drained_) {  // a short read has emptied the socket: another call would be wasted
    BIO_set_retry_read(bio);
    return -1;
  }
  const asio::mutable_buffer buffer(to, static_cast<std::size_t>(count));
  const auto got = self->inner_->try_read(std::span(&buffer, 1));
  if (got) {
    self->is_drained_ = self->is_up_ && *got < buffer.size();
    return static_cast<int>(*got);
  }
  if (got.error() == asio::error::would_block) {
    BIO_set_retry_read(bio);
  } else {
    self->inner_error_ = got.error();
  }
  return -1;
}

int TlsStream::write_bio(BIO* bio, const char* from, int count) {
  BIO_clear_retry_flags(bio);
  auto* const self = static_cast<TlsStream*>(BIO_get_data(bio));
  const auto* const bytes = reinterpret_cast<const std::byte*>(from);
  self->out_.insert(self->out_.end(), bytes, bytes + count);
  return count;
}

long TlsStream::control_bio(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

}  // namespace kv
