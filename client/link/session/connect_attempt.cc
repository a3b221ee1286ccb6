#include "client/link/session/connect_attempt.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/assert.h"

namespace kv {

ConnectAttempt::ConnectAttempt(std::shared_ptr<ClientShared> shared, Listener& listener)
    : shared_(std::move(shared)), listener_(&listener) {}

/// connect_timeout covers the connection and the hello: a node that accepts and stays silent is as good as absent.
void ConnectAttempt::begin(const Endpoint& endpoint, bool is_told) {
  KV_ASSERT(listener_ != nullptr && !is_connected_ && !is_linked());
  shared_->deadlines.add(*this, shared_->clock.now() + shared_->config.connect_timeout);
  // The attempt lives as long as its coroutine: the signal is a part of it.
  const auto ended = [self = shared_from_this()](std::exception_ptr exception) {
    if (exception && !self->is_connected_) self->fail(asio::error::operation_aborted, "connecting failed");
  };
  asio::co_spawn(shared_->executor, run(shared_from_this(), endpoint, is_told),
                 asio::bind_cancellation_slot(cancel_.slot(), ended));
}

asio::awaitable<void> ConnectAttempt::run(std::shared_ptr<ConnectAttempt> self, Endpoint endpoint, bool is_told) {
  const asio::any_io_executor executor = self->shared_->executor;
  if (self->listener_ == nullptr) co_return;  // the network may be gone
  if (const error_code why = self->shared_->may_connect(endpoint, is_told)) {
    self->fail(why, "connect: " + why.message());
    co_return;
  }
  auto stream = co_await self->shared_->network.connect(endpoint, executor);
  if (self->listener_ == nullptr) co_return;
  if (stream) {
    if (const error_code why = self->shared_->may_talk(endpoint, **stream, is_told)) stream = why;
  }
  if (!stream) {
    const error_code why = stream.error();
    self->fail(why, "connect: " + why.message());
    co_return;
  }
  self->is_connected_ = true;
  self->listener_->connected(*self, std::move(*stream));
}

void ConnectAttempt::on_deadline() {
  stop_coroutine();
  fail(asio::error::timed_out, "no connection within connect_timeout");
}

void ConnectAttempt::end() {
  if (listener_ == nullptr) return;
  listener_ = nullptr;
  shared_->deadlines.remove(*this);
  stop_coroutine();
}

void ConnectAttempt::fail(error_code why, std::string text) {
  const auto self = shared_from_this();  // the listener releases it
  Listener* const listener = std::exchange(listener_, nullptr);
  shared_->deadlines.remove(*this);
  if (listener != nullptr) listener->connect_failed(*this, why, std::move(text));
}

/// Posted: emit() acts at once only on the executor, and the signal must live until then.
void ConnectAttempt::stop_coroutine() {
  if (is_connected_) return;
  asio::post(shared_->executor, [self = shared_from_this()] { self->cancel_.emit(asio::cancellation_type::terminal); });
}

}  // namespace kv
