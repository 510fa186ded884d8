// Counters and histograms of the server, and their Prometheus text.
//
// Told by the engine's thread (ServiceObserver) and by the transport (exchange); read by scrapes at any time.
// Counting takes no lock on the engine's side.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/service.h"

namespace gem::server {

class Histogram {
 public:
  // Upper bounds, ascending; above the last one only the count knows.
  explicit Histogram(std::span<const double> bounds);

  void observe(double value) noexcept;

  struct Snapshot {
    std::vector<std::uint64_t> cumulative;  // one a bound, then all
    double sum = 0;
    std::uint64_t count() const { return cumulative.back(); }
  };
  Snapshot snapshot() const;
  std::span<const double> bounds() const { return bounds_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> buckets_;  // one more than bounds
  std::atomic<double> sum_{0};
};

struct MetricsOptions {
  bool vllm_names = false;      // vLLM's names as well
  std::string model_name = {};  // their label
};

class Metrics : public ServiceObserver {
 public:
  explicit Metrics(MetricsOptions options);

  void on_queued() override;
  void on_started(double queue_seconds, std::uint32_t prompt_tokens, std::uint32_t cached) override;
  void on_first_token(double seconds) override;
  void on_token(double seconds) override;
  void on_finished(const GenerationResult& result, double seconds) override;
  void on_round(std::uint32_t rows, std::uint32_t streams, double seconds) override;
  void on_drafts(const DraftCounts& counts) override;

  // One HTTP exchange. `route` is the route's pattern (few of them), not the path as sent.
  void on_exchange(std::string_view method, std::string_view route, int status);

  // text/plain; version=0.0.4. `status`: null while the model is loading.
  std::string text(const ServiceStatus* status) const;
  std::int64_t started() const { return started_; }  // Unix seconds

 private:
  using Counter = std::atomic<std::uint64_t>;
  using Sum = std::atomic<double>;

  MetricsOptions options_;
  std::int64_t started_;

  Counter queued_{0};
  Counter prompt_evaluated_{0}, prompt_cached_{0}, generated_{0};
  Counter rounds_{0}, rows_{0}, streams_{0}, longest_{0};
  Counter draft_rounds_{0};
  std::array<Counter, DraftCounts::kDepths> drafted_{}, accepted_{};
  Counter stop_{0}, length_{0}, tool_calls_{0}, cancelled_{0}, failed_{0};
  Sum prompt_seconds_{0}, decode_seconds_{0}, round_seconds_{0};

  Histogram first_token_, inter_token_, request_, queue_, prefill_, decode_;  // seconds
  Histogram prompt_tokens_, reply_tokens_;

  mutable std::mutex exchanges_mutex_;
  struct ExchangeKey {
    std::string method, route;
    int status = 0;
    auto operator<=>(const ExchangeKey&) const = default;
  };
  std::map<ExchangeKey, std::uint64_t> exchanges_;
};

}  // namespace gem::server
