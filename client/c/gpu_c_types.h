// client/c/gpu_c_types.h: the types behind the handles of kvstore_gpu.h.
#pragma once

#include "client/kvstore_gpu.h"
#include "gpu/layout.h"

struct kvs_layout {
  kv::Layout layout;
};
struct kvs_cache {
  kv::BoundLayout bound;
};
