// The running replies whose thoughts a client may close from another request (chat completions' control
// endpoint).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/service.h"

namespace gem::server {

class RunningReplies : public std::enable_shared_from_this<RunningReplies> {
 public:
  // The same generations, known under `id` until they are destroyed. Must be owned by a shared_ptr.
  std::vector<std::unique_ptr<Generation>> watch(const std::string& id,
                                                 std::vector<std::unique_ptr<Generation>> generations);

  enum class Outcome { kClosed, kNotThinking, kUnknown };
  // Closes the thoughts of every choice of that reply.
  Outcome end_thought(const std::string& id);

 private:
  class Watched;
  std::mutex mutex_;  // held while a generation is told, so that it is not destroyed meanwhile
  std::unordered_multimap<std::string, Generation*> running_;
};

}  // namespace gem::server
