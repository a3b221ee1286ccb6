// client/tools/bench/limit/raw_tls.h: bare OpenSSL on a blocking socket, the reference for tls://.
#pragma once

#include <cstddef>

struct ssl_ctx_st;
struct ssl_st;

namespace kv {

/// Both ends of bare TLS 1.3 with an unverified key of this process: for measuring only. Ciphers are those of tls:// in
/// the same order, and reads are as large. Made before a fork, it serves both sides.
class RawTls {
 public:
  RawTls();  ///< Throws std::runtime_error.
  ~RawTls();
  RawTls(const RawTls&) = delete;
  RawTls& operator=(const RawTls&) = delete;

  /// One connection over a connected blocking socket, which the caller closes after it.
  class Connection {
   public:
    Connection(const RawTls& tls, int fd, bool is_server);  ///< Shakes hands; `is_up()` has the result.
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    bool is_up() const { return is_up_; }
    bool send_all(const void* from, std::size_t bytes);
    bool receive_all(void* to, std::size_t bytes);

   private:
    ssl_st* ssl_;
    bool is_up_ = false;
  };

 private:
  ssl_ctx_st* server_;
  ssl_ctx_st* client_;
};

}  // namespace kv
