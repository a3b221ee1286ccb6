#include "client/link/session/link_spaces.h"

#include <cstring>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kOpenOverheadBytes = 64;  // Of an OpenRequest, besides the record.

}  // namespace

/// One namespace: the request that opens it, and its result.
class LinkSpaces::OpenCall final : public Call {
 public:
  using State = LinkSpaces::State;

  OpenCall(LinkSpaces& spaces, std::uint32_t number) : spaces_(spaces), number_(number) { type = FrameType::kOpen; }

  State state() const { return opened_; }
  std::uint32_t handle() const { return handle_; }
  bool may_try(TimePoint now) const { return now >= retry_at_; }
  void set_pending() {
    KV_ASSERT(opened_ == State::kNo && has_ended());  // 1
    opened_ = State::kPending;
  }
  void set_forgotten() {
    KV_ASSERT(opened_ == State::kYes);
    opened_ = State::kNo;
    retry_at_ = {};
  }

 private:
  const ClientShared::SpaceInfo& asked() const { return *spaces_.session_.shared().spaces[number_]; }

  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    return send_table(session, wire::CreateOpenRequest(builder, builder.CreateString(asked().record.text())));
  }

  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::OpenResponse>(frame.table);
    if (response == nullptr) return "open: malformed";
    mismatch_ = {};
    if (response->block_bytes() != asked().record.block_bytes()) mismatch_ = Errc::kMismatch;
    // The id of the record as read by the node.
    const auto& id = asked().id.bytes;
    const auto* name = response->namespace_id();
    if (name == nullptr || name->size() != id.size()) return "open: no namespace_id";
    if (std::memcmp(name->data(), id.data(), id.size()) != 0) mismatch_ = Errc::kMismatch;
    handle_ = response->space();
    return {};
  }

  void on_end(CallSession*) override {
    KV_ASSERT(opened_ == State::kPending);
    const error_code why = error() ? error() : mismatch_;
    opened_ = why ? State::kNo : State::kYes;
    const ClientShared& shared = spaces_.session_.shared();
    if (why) retry_at_ = shared.clock.now() + shared.config.backoff_max;
    spaces_.session_.open_ended(number_, why, error_text());
  }

  LinkSpaces& spaces_;
  const std::uint32_t number_;
  State opened_ = State::kNo;
  std::uint32_t handle_ = 0;
  error_code mismatch_;   ///< The fault in the node's answer.
  TimePoint retry_at_{};  ///< After a failure, without `must`.
};

LinkSpaces::LinkSpaces(CallSession& session) : session_(session) {}

LinkSpaces::~LinkSpaces() = default;

LinkSpaces::State LinkSpaces::state(std::uint32_t space) const {
  return space < opens_.size() && opens_[space] ? opens_[space]->state() : State::kNo;
}

std::uint32_t LinkSpaces::handle(std::uint32_t space) const {
  KV_ASSERT(state(space) == State::kYes);  // 2
  return opens_[space]->handle();
}

bool LinkSpaces::can_open(std::uint32_t space) const {
  const std::size_t record_bytes = session_.shared().spaces[space]->record.text().size();
  return record_bytes + kOpenOverheadBytes <= session_.terms().table_bytes_max;
}

/// `must`: all sessions lack the namespace, so retry even right after a failure. Otherwise a refused session asks again
/// only after a pause, since calls can use the others.
void LinkSpaces::open(std::uint32_t space, bool must) {
  const ClientShared& shared = session_.shared();
  KV_ASSERT(space < shared.spaces.size());
  if (space >= opens_.size()) opens_.resize(shared.spaces.size());
  auto& open = opens_[space];
  if (!open) open = std::make_unique<OpenCall>(*this, space);
  if (open->state() != State::kNo || !session_.can_take_call() || !can_open(space)) return;
  if (!must && !open->may_try(shared.clock.now())) return;
  open->set_pending();
  session_.start_own(*open, shared.config.connect_timeout);
}

bool LinkSpaces::forget(std::uint32_t space, std::optional<std::uint32_t> handle) {
  if (state(space) != State::kYes || (handle && opens_[space]->handle() != *handle)) return false;
  opens_[space]->set_forgotten();
  return true;
}

}  // namespace kv
