// client/calls/batch_put.h: the common part of the puts of chains (put.cc) and sets (set_put.cc): blocks leave in
// batches.
#pragma once

#include <boost/asio/post.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/core/client_core.h"

namespace kv {

/// The part of a put that one node gets: an offer, the answer with the wanted blocks, those in batches.
///   1. The writer borrows the caller's bytes only while the call is on a session: on_leave() takes them back.
class BatchPut : public Call {
 public:
  ~BatchPut() override {  // in progress only if the client is being destroyed
    if (session() != nullptr) (void)session()->take_back(*this, SIZE_MAX);
  }

  bool has_batch() const { return session() != nullptr && has_unsent() && unsent_bytes_ < kUnsentBytesMax; }
  /// Sends the next wanted blocks and returns their bytes. Requires has_batch().
  virtual std::size_t send_batch() = 0;

  error_code reason() const {
    if (error()) return error();
    return refused_why_ ? refused_why_ : make_error_code(Errc::kTooLarge);  // over the node's limit for one request
  }

 protected:
  static constexpr std::size_t kBatchBytes = 2 << 20;  ///< Small enough to be still in cache when the socket copies it.

  virtual bool has_unsent() const = 0;
  virtual void forget_unsent() = 0;

  /// One frame of `block_count` blocks, `bytes` in all: the checksums in sums_, then payload_. (For lent memory only
  /// the checksums: the node copies.) A batch stays in cache for both passes.
  void send_data(std::size_t block_count, std::size_t bytes);
  /// From the last frame, and whether it refuses a block. Returns "" or the fault.
  std::string note_refusal(std::uint32_t refused_why, bool has_refused);

  std::size_t asked_ = 0;  ///< Leading blocks of the part in the request.
  bool has_want_ = false;
  error_code refused_why_;
  std::vector<std::uint64_t> sums_;
  std::vector<std::span<const std::byte>> payload_;

 private:
  static constexpr std::size_t kUnsentBytesMax = 8 << 20;  ///< Per call, in the writer.
  static constexpr std::size_t kOwnedBytesMax = 4 << 20;   ///< Limit on the writer's copy for a put that ends early.

  void on_leave(CallSession& session) final;

  std::size_t unsent_bytes_ = 0;  ///< Borrowed by the writer.
};

/// Runs until `goes_on`, asked after each wait, is false. Calls with wanted blocks get a batch in turn, and other calls
/// on the executor get theirs after a few batches.
template <class C, class GoesOn>
asio::awaitable<void> send_batches(asio::any_io_executor executor, std::vector<C>& calls, CallBundle& bundle,
                                   GoesOn goes_on) {
  constexpr std::size_t kBytesPerTurn = 2 << 20;
  std::size_t bytes_this_turn = 0;
  while (goes_on()) {
    bool sent = false;
    for (C& call : calls) {
      if (!call.has_batch()) continue;
      bytes_this_turn += call.send_batch();
      sent = true;
    }
    if (sent && bytes_this_turn < kBytesPerTurn) continue;
    bytes_this_turn = 0;
    if (sent) {
      co_await asio::post(executor, asio::use_awaitable);
    } else {
      bundle.event.reset();
      co_await bundle.event.wait();
    }
  }
}

}  // namespace kv
