#include "server/api/running_replies.h"

#include <utility>

namespace gem::server {

class RunningReplies::Watched : public Generation {
 public:
  Watched(std::shared_ptr<RunningReplies> owner, std::string id, std::unique_ptr<Generation> generation)
      : owner_(std::move(owner)), id_(std::move(id)), generation_(std::move(generation)) {
    const std::lock_guard lock(owner_->mutex_);
    owner_->running_.emplace(id_, generation_.get());
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() override {
    const std::lock_guard lock(owner_->mutex_);
    const auto [first, last] = owner_->running_.equal_range(id_);
    for (auto it = first; it != last; ++it) {
      if (it->second != generation_.get()) continue;
      owner_->running_.erase(it);
      break;
    }
  }

  void on_ready(std::function<void()> wake) override { generation_->on_ready(std::move(wake)); }
  GenerationUpdate take() override { return generation_->take(); }
  void cancel() override { generation_->cancel(); }
  bool end_thought() override { return generation_->end_thought(); }

 private:
  std::shared_ptr<RunningReplies> owner_;
  std::string id_;
  std::unique_ptr<Generation> generation_;
};

std::vector<std::unique_ptr<Generation>> RunningReplies::watch(
    const std::string& id, std::vector<std::unique_ptr<Generation>> generations) {
  for (auto& generation : generations)
    generation = std::make_unique<Watched>(shared_from_this(), id, std::move(generation));
  return generations;
}

RunningReplies::Outcome RunningReplies::end_thought(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = running_.equal_range(id);
  if (first == last) return Outcome::kUnknown;
  bool closed = false;
  for (auto it = first; it != last; ++it) closed = it->second->end_thought() || closed;
  return closed ? Outcome::kClosed : Outcome::kNotThinking;
}

}  // namespace gem::server
