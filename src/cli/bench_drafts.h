// gem bench --drafts: what a drafter brings on real prompts.
#pragma once

#include <cstdint>
#include <string>

#include "cli/options.h"

namespace gem::cli {

struct DraftBenchOptions {
  std::string prompts;             // a file of JSON lines: {"prompt": rendered text, "task": name}
  std::uint32_t max_tokens = 256;  // of a reply
  double temperature = 0;
  bool fixed = false;  // always as many drafts as can be
  bool json = false;
};

// Makes every reply twice, plainly and with drafts, and prints by task what was drafted, kept, and won.
// Error(kFailed) when a drafted reply differs from the plain one.
void bench_drafts(const ModelOptions& model, const DraftBenchOptions& options);

}  // namespace gem::cli
