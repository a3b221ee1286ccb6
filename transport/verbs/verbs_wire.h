// transport/verbs/verbs_wire.h: ends of queue pairs and pieces of lent memory, as tables of the wire.
#pragma once

#include "transport/verbs/verbs.h"
#include "transport/wire_generated.h"

namespace kv::verbs {

flatbuffers::Offset<wire::QueuePairEnd> encode(flatbuffers::FlatBufferBuilder& builder,
                                               const QueuePairAddress& address);
/// Errors: kBadRequest: the table is missing, or a value is invalid for a queue pair; the text names the field.
Result<QueuePairAddress, Failure> decode(const wire::QueuePairEnd* end);

}  // namespace kv::verbs
