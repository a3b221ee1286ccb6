#include "store/node/listen/server.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/busy_poll.h"
#include "store/node/threads/thread_border.h"
#include "transport/wire_generated.h"

namespace kv {
namespace {

constexpr int kHandshakeNiceness = 5;  ///< New connections yield to running sessions.
constexpr Duration kRoundPause = 1s;

}  // namespace

struct Server::Thread {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  // Touched on this thread only.
  std::shared_ptr<VerbsThread> verbs;  ///< nullptr: without RDMA.
  std::set<Session*> sessions;
  std::set<Stream*> handshakes;
  std::thread thread;
  std::atomic<std::chrono::steady_clock::time_point> came_round{std::chrono::steady_clock::now()};
};

Server::Server(NodeContext& node, ServerConfig config)
    : node_(node),
      config_(config),
      table_(config.sessions),
      handshakes_(config.handshakes),
      handshake_rate_(config.handshakes_per_second),
      handshakers_(/*in_place=*/false, config.threads, NumaChoice{}, kHandshakeNiceness) {
  KV_ASSERT(config_.threads > 0);
  for (std::size_t i = 0; i < config_.threads; ++i) threads_.emplace_back(std::make_unique<Thread>());
}

/// Each thread makes its own part, because completion queues belong to threads. Earlier sessions continue without RDMA:
/// a session takes its thread's part when it is made.
void Server::begin_verbs(VerbsNode& verbs) {
  for (const auto& each : threads_) {
    asio::post(each->context, [&thread = *each, &verbs] {
      thread.verbs = std::make_shared<VerbsThread>(verbs, thread.context.get_executor());
    });
  }
}

void Server::set_limits(const SessionTableConfig& sessions, std::size_t handshakes_max, double handshakes_per_second) {
  table_.set_limits(sessions);
  handshake_rate_.set(handshakes_per_second);
  SessionTableConfig handshakes = config_.handshakes;
  handshakes.count_max = handshakes_max;
  handshakes_.set_limits(handshakes);
}

Server::~Server() { stop(Duration::zero()); }

Result<Endpoint> Server::listen(Network& network, const Endpoint& endpoint) {
  KV_ASSERT(!stopping_);
  // All listeners live on the first thread. Accepting is cheap, and sessions are dealt out to all threads.
  Thread& thread = *threads_.front();
  auto listener = network.listen(endpoint, thread.context.get_executor());
  if (!listener) return listener.error();
  const Endpoint real = (*listener)->endpoint();
  asio::co_spawn(thread.context, accept(**listener, thread), BorderOf{NodeThread::kIo});
  listeners_.push_back(std::move(*listener));
  return real;
}

asio::awaitable<void> Server::accept(Listener& listener, Thread& home) {
  constexpr Duration kPause = 100ms;  // after EMFILE and the like: accepting again at once would spin
  std::size_t next = 0;
  while (!stopping_) {
    Thread& thread = *threads_[next++ % threads_.size()];
    auto stream = co_await listener.accept(thread.context.get_executor());
    if (!stream) {
      if (stopping_ || stream.error() == asio::error::operation_aborted) co_return;
      node_.log.warn(LogKind::kRefusedSession, node_.clock.now(),
                     [&] { return "accept on " + listener.endpoint().to_string() + ": " + stream.error().message(); });
      Event pause(home.context.get_executor());
      const auto alarm = node_.clock.make_alarm(home.context.get_executor());
      alarm->arm(node_.clock.now() + kPause, [&pause] { pause.set(); });
      co_await pause.wait();
      continue;
    }
    if ((*stream)->needs_handshake()) {
      begin_handshake(thread, std::move(*stream));
    } else {
      take_in(thread, std::move(*stream));
    }
  }
}

/// Takes a peer that has proved its identity, or need not.
void Server::take_in(Thread& thread, std::unique_ptr<Stream> stream) {
  const std::string peer = stream->peer_group();
  if (auto seat = table_.admit(peer, node_.clock.now())) {
    begin_session(thread, std::move(stream), std::move(*seat));
  } else {
    refuse(*stream, thread, peer, seat.error());
  }
}

/// Anybody can connect. Until a peer has proved its identity it costs a socket, a handshake's state and its
/// calculation. Handshakes are limited in number, rate, share of one address, and time. Above the limits the connection
/// is closed without a message, which would have to be encrypted.
void Server::begin_handshake(Thread& thread, std::unique_ptr<Stream> stream) {
  const std::string peer = stream->peer_group();
  const auto verdict = handshake_rate_.take(peer, node_.clock.now());
  if (verdict != HandshakeRate::Verdict::kBegin) {
    ++counts().refused;
    node_.log.warn(LogKind::kHandshake, node_.clock.now(), [&] {
      const bool is_of_peer = verdict == HandshakeRate::Verdict::kTooManyOfPeer;
      return fmt::format("refused {}: tls-handshakes-per-second: {} as many as {}", peer,
                         is_of_peer ? "it has begun" : "there have begun", is_of_peer ? "one address may" : "may");
    });
    return;
  }
  auto seat = handshakes_.admit(peer, node_.clock.now());
  if (!seat) {
    ++counts().refused;
    node_.log.warn(LogKind::kHandshake, node_.clock.now(), [&] {
      return fmt::format(
          "refused {}: tls-handshakes-max: {} connections have not proved yet who they are, {} of them from there",
          peer, handshakes_.size(), handshakes_.peer_size(peer));
    });
    return;
  }
  ++session_count_;
  ++counts().half_open;
  asio::co_spawn(thread.context, shake_hands(thread, std::move(stream), std::move(*seat)),
                 [this](std::exception_ptr error) {
                   --session_count_;
                   BorderOf{NodeThread::kIo}(error);
                 });
}

asio::awaitable<void> Server::shake_hands(Thread& thread, std::unique_ptr<Stream> stream,
                                          std::shared_ptr<SessionTable::Seat> seat) {
  Stream* const key = stream.get();
  thread.handshakes.insert(key);
  bool is_late = false;
  const auto alarm = node_.clock.make_alarm(thread.context.get_executor());
  alarm->arm(node_.clock.now() + config_.handshake_timeout, [&is_late, key] {
    is_late = true;
    key->close();
  });
  const auto done = co_await stream->handshake(&handshakers_);
  alarm->disarm();
  thread.handshakes.erase(key);
  handshakes_.leave(seat);
  --counts().half_open;
  if (done && !stopping_) {
    ++counts().completed;
    take_in(thread, std::move(stream));
    co_return;
  }
  if (stopping_) co_return;
  ++counts().failed;
  node_.log.warn(LogKind::kHandshake, node_.clock.now(), [&] {
    return fmt::format("handshake with {} failed: {}", stream->peer(),
                       is_late ? "not done within tls-handshake-seconds" : done.error().message());
  });
}

void Server::begin_session(Thread& thread, std::unique_ptr<Stream> stream, std::shared_ptr<SessionTable::Seat> seat) {
  KV_ASSERT(stream != nullptr && seat != nullptr);
  // Counted here rather than on the session's thread: stop() must also wait for sessions on their way there.
  ++session_count_;
  const SessionId id{++session_last_};
  asio::post(thread.context, [this, &thread, id, seat = std::move(seat), stream = std::move(stream)]() mutable {
    const auto session =
        std::make_shared<Session>(node_, id, std::move(stream), thread.context.get_executor(), thread.verbs);
    session->sit(table_, std::move(seat));
    thread.sessions.insert(session.get());
    asio::co_spawn(thread.context, session->run(), [this, &thread, session](std::exception_ptr error) {
      const std::size_t erased = thread.sessions.erase(session.get());
      KV_ASSERT(erased == 1);
      --session_count_;
      if (!error) return;
      BorderOf{NodeThread::kIo}(error);
      session->terminate(SessionEnd::kBroken);  // its resources are released with its last job
    });
  });
}

/// Tells the client why before closing: a connection that just ends looks like a broken node.
void Server::refuse(Stream& stream, Thread& thread, const std::string& peer, SessionTable::Refusal refusal) {
  const bool for_its_peer = refusal == SessionTable::Refusal::kPeer;
  const std::string why =
      for_its_peer ? fmt::format("sessions: this peer ({}) holds {}; session-share-max keeps the rest for others", peer,
                                 table_.peer_size(peer))
                   : "sessions: the node's limit session-count-max is reached";
  node_.metrics.session_refused(for_its_peer);
  node_.log.warn(LogKind::kRefusedSession, node_.clock.now(), [&] { return "refused " + peer + ": " + why; });
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateErrorDirect(builder, static_cast<std::uint16_t>(Errc::kBusy), why.c_str()));
  FrameWriter writer(stream, thread.context.get_executor());
  FrameHeader header;
  header.type = FrameType::kHello;
  header.flags = kFrameResponse | kFrameError;
  writer.send(header, std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
  writer.flush();
}

void Server::start() {
  KV_ASSERT(!stopping_ && !threads_.front()->thread.joinable());
  for (auto& thread : threads_) {
    asio::co_spawn(thread->context, come_round(*thread), BorderOf{NodeThread::kIo});
    thread->thread = std::thread([this, each = thread.get()] { run_thread(*each); });
  }
}

asio::awaitable<void> Server::come_round(Thread& thread) {
  asio::steady_timer timer(thread.context);
  while (true) {
    thread.came_round = std::chrono::steady_clock::now();
    timer.expires_after(kRoundPause);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

Duration Server::stalled_for() const {
  if (stopping_) return Duration::zero();
  auto first = std::chrono::steady_clock::time_point::max();
  for (const auto& thread : threads_) first = std::min(first, thread->came_round.load());
  return std::chrono::steady_clock::now() - first;
}

void Server::run_thread(Thread& thread) {
  ::pthread_setname_np(::pthread_self(), "io");
  asio::io_context& context = thread.context;
  if (config_.busy_poll.count() == 0) return run_within_border(NodeThread::kIo, context);
  BusyPoll busy_poll(context, config_.busy_poll);
  while (!context.stopped()) within_border(NodeThread::kIo, [&busy_poll] { busy_poll.run_some(); });
}

/// Asks each thread repeatedly: a session may begin after its thread was asked.
void Server::end_sessions(std::chrono::steady_clock::time_point until, void (*end)(Session&)) {
  while (session_count_ > 0 && std::chrono::steady_clock::now() < until) {
    for (auto& thread : threads_) {
      asio::post(thread->context, [each = thread.get(), end] {
        for (Session* session : each->sessions) end(*session);
        for (Stream* stream : each->handshakes) stream->close();  // no work is lost
      });
    }
    std::this_thread::sleep_for(10ms);
  }
}

/// Order: refuse new sessions; give running transfers `timeout`; cut sessions; wait for calls on other threads while
/// the I/O threads still take their results; stop the threads. Last, run the device loops to their end here: they are
/// coroutines of contexts that no longer have a thread.
void Server::stop(Duration timeout) {
  if (stopping_.exchange(true)) return;
  node_.draining = true;
  const bool running = threads_.front()->thread.joinable();
  for (auto& listener : listeners_) {
    if (running) {
      asio::post(threads_.front()->context, [each = listener.get()] { each->close(); });
    } else {
      listener->close();
    }
  }
  VerbsNode* const verbs = node_.verbs;
  if (running) {
    // Sessions end as soon as they have no transfer in progress; at the timeout, all end. A move without an answer
    // from its device ends by its own deadline, and its session after it.
    const auto now = std::chrono::steady_clock::now();
    const Duration grace = 2s + (verbs != nullptr ? verbs->config().move_timeout : Duration::zero());
    end_sessions(now + timeout, [](Session& session) { session.terminate_if_idle(); });
    end_sessions(now + timeout + grace, [](Session& session) { session.terminate(SessionEnd::kDrained); });
  }
  if (verbs != nullptr) verbs->finish_calls();
  handshakers_.finish();
  node_.lent->finish();
  if (node_.aside != nullptr) node_.aside->join();  // its answers go to these threads; draining sessions ask for none
  for (auto& thread : threads_) thread->work.reset();
  for (auto& thread : threads_) {
    thread->context.stop();
    if (thread->thread.joinable()) thread->thread.join();
    if (!thread->verbs) continue;
    thread->verbs->stop();
    thread->context.restart();
    thread->context.poll();
  }
}

}  // namespace kv
