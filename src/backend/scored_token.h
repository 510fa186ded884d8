// A token and its logit.
#pragma once

#include <cstdint>

namespace gem {

struct ScoredToken {
  float logit = 0;
  std::int32_t token = 0;
};

}  // namespace gem
