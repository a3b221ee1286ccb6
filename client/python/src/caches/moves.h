// client/python/src/caches/moves.h: what a call does to rows as they move, by Python's arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/layout.h"
#include "gpu/operation.h"

namespace kv::python {

namespace nb = nanobind;

/// Roles by the names that Python programs contain.
Role role_from(const std::string& name);
const char* public_name(Role role);

/// An Operation from Python, and the arrays that it borrows.
struct Moves {
  Operation operation;
  std::vector<double> frequencies;
  std::vector<std::int64_t> deltas;
};

/// Of a Move or a Rotation of kvstore/layouts.py; None: a copy.
std::unique_ptr<Moves> moves_from(nb::handle move);

/// Throws unless there is a delta for each row, or one for all.
void check_deltas(const Moves& moves, std::int64_t rows);
/// Throws the error of a move between two caches, explained by their layouts.
void check_moved(const Result<void>& moved, const Layout& to, const Layout& from, const Operation& operation);

}  // namespace kv::python
