// store/node/session/dispatcher.h: each request of a session goes to the part that carries it out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/event.h"
#include "store/node/session/core/message_answers.h"
#include "store/node/session/core/region_table.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/core/session_rdma.h"
#include "store/node/session/core/space_door.h"
#include "store/node/session/requests/drops.h"
#include "store/node/session/requests/lookups.h"
#include "store/node/session/requests/questions.h"
#include "store/node/session/transfers/get.h"
#include "store/node/session/transfers/prefetch.h"
#include "store/node/session/transfers/put.h"
#include "store/node/session/transfers/set_get.h"
#include "transport/frames/frame_reader.h"

namespace kv {

/// Serves requests in the order of their frames; gets and puts that need time stay in its tables until their end. Each
/// length, count, offset and handle of a request is checked before use.
///   1. Only requests that permit() let through are served.
///   2. Transfers in flight are bounded by SessionLimits (may_begin()), and each has an id of its own.
/// Thread safety: none; on the session's executor. Lives as long as the session.
class Dispatcher final : private Put::Listener {
 public:
  using Frame = SessionCore::Frame;
  Dispatcher(SessionCore& session, FrameReader& reader, SessionRdma& rdma, MessageAnswers& messages);
  ~Dispatcher() override;

  asio::awaitable<bool> take(const Frame& frame);  ///< And its payload. False: the stream broke.
  void serve(const Frame& frame);                  ///< A request without a payload.

  /// Gets that wait for the client to take their bytes hold a window of blocks each: read no more requests meanwhile.
  bool has_inline_room() const;
  asio::awaitable<void> wait_for_inline();
  /// The client's bytes wait for us: for blocks being fetched, or for inline gets.
  bool keeps_waiting() const { return draining_.is_reached() || !has_inline_room(); }
  bool is_copying() const { return !gets_.empty(); }  ///< Perhaps into the client's memory.
  bool is_moving() const;                             ///< Blocks, for a request or ahead of one.
  bool is_lent() const { return !regions_.empty(); }  ///< Whether the client has lent memory.
  TimePoint lease_until() const { return lookups_.lease_until(); }
  void end_late_transfers(TimePoint now);

  void stop();  ///< The session ends: transfers stop, and running jobs notice that.
  void end();   ///< After the last job: takes all of the session out of the store.

 private:
  /// A transfer that may begin.
  template <class Request>
  struct Admitted {
    const Request* request;
    const OpenSpace* space;
    BlockPath path;
  };
  template <class Request>
  std::optional<Admitted<Request>> admit(const Frame& frame, NamespaceKind kind);
  bool permit(const Frame& frame);
  bool may_begin(const Frame& frame);
  bool hold(const Frame& frame);

  void on_get(const Frame& frame);
  void on_set_get(const Frame& frame);
  void start(const std::shared_ptr<GetInProgress>& get);
  asio::awaitable<void> carry_out(std::shared_ptr<GetInProgress> get, SessionJob job);
  template <class Request>
  void on_put(const Frame& frame, NamespaceKind kind);
  asio::awaitable<bool> on_put_data(const Frame& frame);
  void put_ended(std::uint64_t request_id) override { puts_.erase(request_id); }
  void on_match(const Frame& frame);  ///< And set_match.
  asio::awaitable<void> carry_out_ahead(std::shared_ptr<Prefetch> prefetch, SessionJob job);
  void on_prefix(const Frame& frame);  ///< touch, retain, unretain, drop
  void on_cancel(const Frame& frame);
  void on_region_remove(const Frame& frame);
  void refuse(const Frame& frame, error_code code, const std::string& why) { session_.refuse(frame, code, why); }

  SessionCore& session_;
  NodeContext& node_;
  FrameReader& reader_;
  SessionRdma& rdma_;
  MessageAnswers& messages_;
  SpaceDoor spaces_;
  RegionTable regions_;
  Lookups lookups_;
  Questions questions_;
  Drops drops_;
  DrainBound draining_;

  std::unordered_map<std::uint64_t, std::shared_ptr<GetInProgress>> gets_;  ///< By request id; those with a coroutine.
  std::unordered_map<std::uint64_t, std::shared_ptr<Put>> puts_;            ///< By request id.
  std::vector<std::shared_ptr<Prefetch>> prefetches_;
  RequestRoom room_;              ///< Of the request being served, if it is large; a transfer takes it over.
  std::size_t inline_count_ = 0;  ///< Gets that wait for the client to take their bytes.
  Event inline_ended_;
};

}  // namespace kv
