// client/tools/ctl/generation_report.h: what `kvstorectl size --new-tokens` says of gpu/paging/generation_work.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "gpu/paging/generation_work.h"

namespace kv {

class GenerationReport {
 public:
  /// Requires check_generation(). Parameters of 0 are unknown: then only bytes are reported. `has_own_logits`: the
  /// parameters are those of the layers, so that logits cost extra.
  GenerationReport(ModelCache model, double parameters, bool has_own_logits, const Generation& generation);

  bool is_asked() const { return generation_.new_tokens > 0; }
  std::string heading() const;  ///< Of the column of peak_bytes().
  std::uint64_t peak_bytes(CacheFormat format) const;
  nlohmann::json json() const;
  void print(std::ostream& out) const;

 private:
  struct Row {
    std::string name, key;
    Work work;
  };
  std::vector<Row> rows() const;

  ModelCache model_;
  double parameters_;
  bool has_own_logits_;
  Generation generation_;
};

}  // namespace kv
