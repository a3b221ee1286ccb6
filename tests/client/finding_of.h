// tests/client/finding_of.h: one finding of a doctor, by its check.
#pragma once

#include <algorithm>
#include <string>

#include "client/tools/ctl/doctor/doctor.h"

namespace kv {

/// nullptr: no finding has this check.
inline const Finding* finding_of(const Findings& findings, const std::string& check) {
  const auto found = std::ranges::find(findings, check, &Finding::check);
  return found == findings.end() ? nullptr : &*found;
}

}  // namespace kv
