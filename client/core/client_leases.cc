#include "client/core/client_leases.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "client/link/request_parts.h"

namespace kv {
namespace {

constexpr std::size_t kLeasesMax = 65536;

}  // namespace

void LeaseEntry::add(LeasePart part, std::uint64_t lease_us, TimePoint now) {
  if (part.id == 0) return;
  const auto granted = std::chrono::microseconds(std::min(lease_us, static_cast<std::uint64_t>(kLeaseMax.count())));
  until = std::min(until, now + granted);
  parts.push_back(std::move(part));
}

Lease ClientLeases::keep(LeaseEntry entry, TimePoint now) {
  KV_ASSERT(!entry.parts.empty());
  // Leases of one client end in about the order of grant, so it is enough to check the first ones.
  while (!leases_.empty() && (leases_.begin()->second.until < now || leases_.size() >= kLeasesMax)) {
    leases_.erase(leases_.begin());
  }
  leases_.emplace(++last_, std::move(entry));
  return Lease{last_};
}

std::vector<LeasePart> ClientLeases::take(Lease lease) {
  const auto found = leases_.find(static_cast<std::uint64_t>(lease));
  if (found == leases_.end()) return {};
  auto parts = std::move(found->second.parts);
  leases_.erase(found);
  return parts;
}

void end_lease(ClientShared& shared, const LeasePart& part) {
  const auto session = part.session.lock();
  if (!session) return;
  auto& builder = shared.new_request();
  builder.Finish(wire::CreateReleaseRequest(builder, part.id));
  session->send_and_forget(FrameType::kRelease, builder);
}

void release_unasked(ClientShared& shared, const std::vector<LeasePart>& lease, std::span<const OwnedChain> asked) {
  for (const LeasePart& part : lease) {
    const auto is_for = [&](const OwnedChain& chain) { return chain.node == part.node && chain.first == part.first; };
    if (std::ranges::none_of(asked, is_for)) end_lease(shared, part);
  }
}

std::uint64_t use_lease(const std::vector<LeasePart>& parts, const OwnedChain& chain, Call& call) {
  const auto part = std::ranges::find_if(
      parts, [&](const LeasePart& each) { return each.node == chain.node && each.first == chain.first; });
  if (part == parts.end()) return 0;
  call.session_wanted = part->session.lock();
  return part->id;
}

}  // namespace kv
