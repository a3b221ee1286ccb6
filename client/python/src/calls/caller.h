// client/python/src/calls/caller.h: what Python makes calls on.
#pragma once

#include <memory>

#include "client/python/src/buffers.h"
#include "client/python/src/calls/client_core.h"
#include "client/request.h"

namespace kv::python {

/// A client, which waits for the end of each call and gives its result, or a queue, which gives a Future at once.
class Caller {
 public:
  virtual const std::shared_ptr<ClientCore>& core() const = 0;
  /// `holds`: memory that the request names.
  virtual nb::object make(const Request& request, Holds holds) = 0;

 protected:
  ~Caller() = default;
};

}  // namespace kv::python
