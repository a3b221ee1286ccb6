// store/desks/put/put_slots.h: slots for a put's blocks, or the reason why there are none.
#pragma once

#include "store/desks/context_desk.h"
#include "store/desks/put/open_put.h"

namespace kv {

/// Takes slots for a PutDesk's blocks in order, within the memory, the bound on the index, the tenant's share and the
/// policy's worth.
///   1. Slots are taken in the order of the offer, up to the first that is refused.
///   2. A put with groups keeps slots of whole groups only between two calls.
///   3. A slot is refused for lack of memory only if every block is pinned. A block with a pinned block below counts
///   as
///      pinned. With several block sizes: only if every run of granules that fits its slab has a pin.
class PutSlots {
 public:
  PutSlots(Shelf& shelf, SpaceDesk& spaces, ContextDesk& contexts)
      : shelf_(shelf), spaces_(spaces), contexts_(contexts) {}

  /// Takes slots for as many more blocks as there is memory for, into `plan`.
  void take(OpenPut& put, OfferPlan& plan, bool may_lose, TimePoint now, Steps& steps);
  Usage first_usage(const OpenPut& put, std::size_t i) const;  ///< Of put.hashes[i], when it is stored.
  std::size_t slot_bytes(const OpenPut& put, std::size_t i) const {
    return put.is_set() ? spaces_.slot_bytes(*put.space, put.lengths[i]) : put.space->record->block_bytes();
  }
  /// The token ids of a put begin, or end, to count for index_used_bytes().
  void count_ids(const OpenPut& put) { ids_bytes_ += put.ids_bytes(); }
  void end_ids(const OpenPut& put);
  /// Everything that clients can make grow: the index, its side tables, and the future entries of running puts.
  std::size_t index_used_bytes() const;
  std::size_t ids_bytes() const { return ids_bytes_; }

 private:
  enum class Room : std::uint8_t { kIs, kIsNot, kUnfinished };
  Room make_index_room(TimePoint now, Steps& steps);
  void look_for_remembered(OpenPut& put, std::size_t i) const;
  double worth(const OpenPut& put, std::size_t i) const;
  void not_admit_rest(OpenPut& put);
  void tell_incoming(OpenPut& put, OfferPlan& plan);

  Shelf& shelf_;
  SpaceDesk& spaces_;
  ContextDesk& contexts_;
  std::size_t ids_bytes_ = 0;
};

}  // namespace kv
