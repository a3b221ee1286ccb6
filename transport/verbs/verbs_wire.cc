#include "transport/verbs/verbs_wire.h"

#include <algorithm>
#include <utility>

namespace kv::verbs {

/// Field by field, not as bytes: the two sides may be of different versions.
flatbuffers::Offset<wire::QueuePairEnd> encode(flatbuffers::FlatBufferBuilder& builder,
                                               const QueuePairAddress& address) {
  const auto gid = builder.CreateVector(address.gid.data(), address.gid.size());
  return wire::CreateQueuePairEnd(builder, address.number, address.first_psn, address.lid, gid, address.mtu_bytes,
                                  address.read_count_max);
}

Result<QueuePairAddress, Failure> decode(const wire::QueuePairEnd* end) {
  // A peer wrote this. These values go to the driver, so every field is checked against the standard.
  constexpr std::uint32_t kMax24 = (1 << 24) - 1, kReadCountMax = 255;
  const auto refuse = [](std::string text) { return Failure(Errc::kBadRequest, std::move(text)); };
  if (end == nullptr) return refuse("end: missing");
  const auto is_outside = [](std::uint32_t value, std::uint32_t least, std::uint32_t most) {
    return value < least || value > most;
  };
  if (is_outside(end->number(), 1, kMax24)) return refuse("end.number: " + std::to_string(end->number()));
  if (is_outside(end->first_psn(), 0, kMax24)) return refuse("end.first_psn: " + std::to_string(end->first_psn()));
  if (is_outside(end->read_count_max(), 1, kReadCountMax))
    return refuse("end.read_count_max: " + std::to_string(end->read_count_max()) + ", 1..255 are allowed");
  const std::uint32_t mtu = end->mtu_bytes();
  if (!is_mtu(mtu)) return refuse("end.mtu_bytes: " + std::to_string(mtu) + std::string(kMtusAllowed));
  QueuePairAddress address;
  if (end->gid() == nullptr || end->gid()->size() != address.gid.size())
    return refuse("end.gid: " + std::to_string(end->gid() == nullptr ? 0 : end->gid()->size()) + " bytes, not 16");
  std::copy(end->gid()->begin(), end->gid()->end(), address.gid.begin());
  address.number = end->number();
  address.first_psn = end->first_psn();
  address.lid = end->lid();
  address.mtu_bytes = mtu;
  address.read_count_max = end->read_count_max();
  return address;
}

}  // namespace kv::verbs
