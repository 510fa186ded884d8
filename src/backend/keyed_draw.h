// The keyed draw of a token (Gumbel-max): the argmax over the kept tokens of logit / temperature + Gumbel
// noise that is a function of (seed, position, token) alone. The sampler's (engine/sampler.h), and what a
// backend has to know of it to go on with a token that it drew itself.
#pragma once

#include <cstdint>

namespace gem {

// 2^64 / golden ratio, odd.
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of splitmix64: every input bit reaches every output bit.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// In (0, 1): 53 bits in the middle of their cells, so that logarithms of it are finite.
constexpr double keyed_uniform(std::uint64_t seed, std::uint64_t position, std::uint64_t token) {
  std::uint64_t h = mixed(seed + kGolden);
  h = mixed(h ^ (position * kGolden + 1));
  h = mixed(h ^ (token * kGolden + 2));
  return (static_cast<double>(h >> 11) + 0.5) * 0x1p-53;
}

// A draw from the best tokens of a row: the `top_k` best, then as far as those before do not reach `top_p` of
// their probability, and of at least `min_p` of the best one's.
struct KeyedDraw {
  double temperature = 0;   // 0: the best token; top_k is not looked at
  std::uint32_t top_k = 1;  // 1 or more
  double top_p = 1, min_p = 0;
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  // of the chain's first draw
};

}  // namespace gem
