// client/c/request_rules.h: what a kvs_request may hold, by operation. Everything that can be wrong with a request, and
// is not a node's to judge, is refused here with its field, its value and what is allowed.
#pragma once

#include <cstdint>

#include "client/kvstore.h"
#include "client/request.h"

namespace kv::c_api {

/// "match", as in kvstore.h.
const char* op_name(std::uint32_t op);
/// Whether the request names a namespace; the rules then need its size.
bool takes_space(std::uint32_t op);
/// Refuses (c_status.h) a request that breaks a rule. Does not read what a correct caller's pointers point to beyond
/// their counts. `size`: of the namespace, if the operation takes one. Cost: about 0.1 us, and 1 ns a block.
void check_request(const kvs_request& request, SpaceSize size);

}  // namespace kv::c_api
