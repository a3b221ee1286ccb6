#include "client/link/session/link_regions.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

/// One region: the request that lends it, and its result.
class LinkRegions::AddCall final : public Call {
 public:
  using State = LinkRegions::State;

  AddCall(LinkRegions& regions, const std::shared_ptr<LentMemory::Region>& lent)
      : regions_(regions), lent_(lent), bytes_(lent->bytes().size()) {
    type = FrameType::kRegionAdd;
  }

  State state() const { return lent_state_; }
  std::uint32_t handle() const { return handle_; }
  std::uint64_t bytes() const { return bytes_; }
  bool is_of(const LentMemory::Region& other) const { return lent_.get() == &other; }
  /// The refusal has expired, or the region was taken back: it can be offered anew.
  bool is_spent(const LentMemory::Region& wanted, const Clock& clock) const {
    return lent_state_ == State::kRefused && has_ended() && (!lent_ || (is_of(wanted) && clock.now() >= retry_at_));
  }
  void refuse() { lent_state_ = State::kRefused; }
  void let_go() { lent_.reset(); }

 private:
  error_code send(CallSession& session) override {
    auto& builder = session.shared().new_request();
    if (regions_.by_memfd_) {
      builder.Finish(wire::CreateRegionAddRequest(builder, bytes_));
      session.send_frame(type, request_id(), builder, lent_->memory->fd());
      return {};
    }
    KV_ASSERT(regions_.lanes_ != nullptr);
    const verbs::RegisteredMemory& memory = session.shared().verbs.registered(*lent_);
    std::vector<flatbuffers::Offset<wire::RegionSlice>> slices;
    for (std::size_t slice = 0; slice < memory.slice_count(); ++slice) {
      const auto rkeys = regions_.lanes_->rkeys(memory, slice);
      const auto bytes =
          memory.within_slice(memory.memory().data() + slice * memory.slice_bytes(), memory.slice_bytes());
      slices.push_back(
          wire::CreateRegionSliceDirect(builder, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), &rkeys));
    }
    builder.Finish(wire::CreateRegionAddRequestDirect(builder, bytes_, &slices));
    if (builder.GetSize() > session.terms().table_bytes_max) return Errc::kTooLarge;
    session.send_frame(type, request_id(), builder);
    return {};
  }

  std::string on_last(const FrameReader::Frame& frame) override {
    const auto* response = read_table<wire::RegionResponse>(frame.table);
    if (response == nullptr || response->region() == 0) return "region_add: no region handle";
    handle_ = response->region();
    return {};
  }

  void on_end(CallSession* session) override {
    KV_ASSERT(lent_state_ == State::kPending);
    lent_state_ = !error() && session != nullptr ? State::kYes : State::kRefused;
    if (lent_state_ == State::kRefused) {
      KV_ASSERT(regions_.bytes_ >= bytes_);
      regions_.bytes_ -= bytes_;
      const bool may_pass =
          error() == asio::error::timed_out || error() == Errc::kBusy || error() == Errc::kUnavailable;
      const ClientShared& shared = regions_.session_.shared();
      if (may_pass) retry_at_ = shared.clock.now() + shared.config.backoff_max;
    } else if (!lent_) {
      regions_.remove(*this);
    }
    regions_.session_.lend_ended();
  }

  LinkRegions& regions_;
  std::shared_ptr<LentMemory::Region> lent_;  ///< Null: taken back while pending.
  const std::uint64_t bytes_;
  State lent_state_ = State::kPending;
  std::uint32_t handle_ = 0;
  TimePoint retry_at_ = TimePoint::max();  ///< After a refusal.
};

LinkRegions::LinkRegions(CallSession& session, bool by_memfd) : session_(session), by_memfd_(by_memfd) {}

LinkRegions::~LinkRegions() = default;

LinkRegions::AddCall* LinkRegions::find(const LentMemory::Region& region) const {
  const auto found = std::ranges::find_if(lent_, [&](const auto& lent) { return lent->is_of(region); });
  return found == lent_.end() ? nullptr : found->get();
}

LinkRegions::State LinkRegions::lend(const std::shared_ptr<LentMemory::Region>& region) {
  std::erase_if(lent_, [&](const auto& lent) { return lent->is_spent(*region, session_.shared().clock); });
  if (!by_memfd_) return lend_by_verbs(region);
  if (region->is_device()) return State::kRefused;  // it lacks a memfd
  if (const AddCall* const lent = find(*region)) return lent->state();
  return add(region);
}

/// By RDMA, lending waits for devices, a registration and a lane. Until all are ready the answer is kNotNow, not
/// kPending: host memory meanwhile goes through the socket, and calls do not wait.
LinkRegions::State LinkRegions::lend_by_verbs(const std::shared_ptr<LentMemory::Region>& region) {
  if (lanes_ == nullptr) return State::kRefused;
  lanes_->connect_missing();
  VerbsLender& lender = session_.shared().verbs;
  if (lender.state() == VerbsLender::State::kUnavailable) return State::kRefused;
  if (lender.state() != VerbsLender::State::kReady) return State::kNotNow;
  const AddCall* const lent = find(*region);
  if (lent != nullptr && lent->state() == State::kRefused) return State::kRefused;
  const auto registration = lender.registration(region);
  if (registration == VerbsLender::Registration::kFailed) return State::kRefused;
  if (registration != VerbsLender::Registration::kReady || lanes_for(*region) == 0) return State::kNotNow;
  const State state = lent != nullptr ? lent->state() : add(region);
  return state == State::kPending ? State::kNotNow : state;
}

/// Bytes count from the request on (1): two requests in flight must not exceed the node's limit together.
LinkRegions::State LinkRegions::add(const std::shared_ptr<LentMemory::Region>& region) {
  KV_ASSERT(find(*region) == nullptr);
  if (!session_.can_take_call()) return State::kPending;
  AddCall& lent = *lent_.emplace_back(std::make_unique<AddCall>(*this, region));
  const std::uint64_t bytes_max = session_.terms().region_bytes_max;
  if (lent.bytes() > bytes_max - std::min(bytes_, bytes_max)) {  // 1
    lent.refuse();
    return State::kRefused;
  }
  bytes_ += lent.bytes();
  // The node maps and checks it: 20 ms per GiB, and a hundred times that on a slow machine.
  session_.start_own(lent, session_.shared().config.connect_timeout + std::chrono::seconds(lent.bytes() >> 29));
  return State::kPending;
}

std::uint32_t LinkRegions::handle(const LentMemory::Region& region) const {
  const AddCall* const lent = find(region);
  KV_ASSERT(lent != nullptr && lent->state() == State::kYes);  // 2
  return lent->handle();
}

std::uint32_t LinkRegions::lanes_for(const LentMemory::Region& region) const {
  return lanes_ == nullptr ? 0 : lanes_->reaching(session_.shared().verbs.registered(region));
}

/// Before the node's answer there is no handle to take back: the entry only releases the region, and on_end() takes it
/// back once the handle is known (3).
void LinkRegions::take_back(const LentMemory::Region& region) {
  const auto found = std::ranges::find_if(lent_, [&](const auto& lent) { return lent->is_of(region); });
  if (found == lent_.end()) return;
  AddCall& lent = **found;
  if (lent.state() == State::kPending) return lent.let_go();  // 3
  if (lent.state() == State::kYes) remove(lent);
  lent_.erase(found);
}

/// Removes a lent region without waiting for an answer: memory that the node may write is quarantined, or cut off.
void LinkRegions::remove(AddCall& lent) {
  KV_ASSERT(lent.state() == State::kYes && bytes_ >= lent.bytes());
  bytes_ -= lent.bytes();
  lent.refuse();
  auto& builder = session_.shared().new_request();
  builder.Finish(wire::CreateRegionRemoveRequest(builder, lent.handle()));
  session_.send_and_forget(FrameType::kRegionRemove, builder);
}

bool LinkRegions::has_any() const {
  return std::ranges::any_of(lent_, [](const auto& lent) { return lent->state() == State::kYes; });
}

}  // namespace kv
