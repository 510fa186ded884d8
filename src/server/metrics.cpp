#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iterator>

#include "base/system_memory.h"

namespace gem::server {
namespace {

// From a demo model's answer in milliseconds to a long prompt on a slow machine.
constexpr std::array kSeconds{0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,  1.0,   2.5,
                              5.0,   10.0, 25.0,  50.0, 100., 250., 500., 1000., 2500.};
constexpr std::array kStepSeconds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                  0.075,  0.1,   0.15,   0.25,  0.5,  1.0,   5.0};
constexpr std::array kTokens{1.,    4.,    16.,   64.,    128.,   256.,   512.,    1024.,
                             2048., 4096., 8192., 16384., 32768., 65536., 131072., 262144.};

void add(std::atomic<double>& sum, double value) {
  sum.fetch_add(value, std::memory_order_relaxed);
}

void add(std::atomic<std::uint64_t>& counter, std::uint64_t value = 1) {
  counter.fetch_add(value, std::memory_order_relaxed);
}

// In label values: backslash, quote and newline are escaped.
std::string label_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

class Writer {
 public:
  // `labels`: of every sample written, e.g. model_name="x"; may be empty.
  explicit Writer(std::string labels = {}) : labels_(std::move(labels)) {}

  void head(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename Number>
  void sample(std::string_view name, Number value, std::string_view more = {}) {
    out_ += name;
    if (!labels_.empty() || !more.empty()) {
      out_ += '{';
      out_ += labels_;
      if (!labels_.empty() && !more.empty()) out_ += ',';
      out_ += more;
      out_ += '}';
    }
    fmt::format_to(std::back_inserter(out_), " {}\n", value);
  }
  template <typename Number>
  void counter(std::string_view name, Number value, std::string_view help) {
    head(name, "counter", help);
    sample(name, value);
  }
  template <typename Number>
  void gauge(std::string_view name, Number value, std::string_view help) {
    head(name, "gauge", help);
    sample(name, value);
  }
  void histogram(std::string_view name, const Histogram& h, std::string_view help) {
    head(name, "histogram", help);
    const Histogram::Snapshot s = h.snapshot();
    const std::string bucket = fmt::format("{}_bucket", name);
    for (std::size_t i = 0; i < h.bounds().size(); ++i)
      sample(bucket, s.cumulative[i], fmt::format("le=\"{}\"", h.bounds()[i]));
    sample(bucket, s.count(), "le=\"+Inf\"");
    sample(fmt::format("{}_sum", name), s.sum);
    sample(fmt::format("{}_count", name), s.count());
  }
  std::string& text() { return out_; }

 private:
  std::string labels_;
  std::string out_;
};

double rate(double amount, double per) {
  return per > 0 ? amount / per : 0;
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), buckets_(bounds.size() + 1) {}

void Histogram::observe(double value) noexcept {
  if (!std::isfinite(value)) return;
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  add(buckets_[static_cast<std::size_t>(bound - bounds_.begin())]);
  add(sum_, value);
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot s;
  std::uint64_t total = 0;
  for (const auto& bucket : buckets_) {
    total += bucket.load(std::memory_order_relaxed);
    s.cumulative.push_back(total);
  }
  s.sum = sum_.load(std::memory_order_relaxed);
  return s;
}

Metrics::Metrics(MetricsOptions options)
    : options_(std::move(options)),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      first_token_(kSeconds),
      inter_token_(kStepSeconds),
      request_(kSeconds),
      queue_(kSeconds),
      prefill_(kSeconds),
      decode_(kSeconds),
      prompt_tokens_(kTokens),
      reply_tokens_(kTokens) {}

void Metrics::on_queued() {
  add(queued_);
}

void Metrics::on_started(double queue_seconds, std::uint32_t prompt_tokens, std::uint32_t cached) {
  queue_.observe(queue_seconds);
  prompt_tokens_.observe(prompt_tokens);
  add(prompt_cached_, cached);
}

void Metrics::on_first_token(double seconds) {
  first_token_.observe(seconds);
  add(generated_);
}

void Metrics::on_token(double seconds) {
  inter_token_.observe(seconds);
  add(generated_);
}

void Metrics::on_finished(const GenerationResult& result, double seconds) {
  request_.observe(seconds);
  reply_tokens_.observe(result.times.reply_tokens);
  if (result.times.prompt_tokens > 0) prefill_.observe(result.times.prompt_seconds);
  if (result.times.reply_tokens > 0) decode_.observe(result.times.decode_seconds);
  add(prompt_evaluated_, result.times.prompt_tokens);
  add(prompt_seconds_, result.times.prompt_seconds);
  add(decode_seconds_, result.times.decode_seconds);
  const std::uint64_t length =
      std::uint64_t{result.times.reused} + result.times.prompt_tokens + result.times.reply_tokens;
  std::uint64_t longest = longest_.load(std::memory_order_relaxed);
  while (length > longest && !longest_.compare_exchange_weak(longest, length, std::memory_order_relaxed)) {
  }
  switch (result.reason) {
    case FinishReason::kStop:
      add(result.reply.finish_reason == "tool_calls" ? tool_calls_ : stop_);
      break;
    case FinishReason::kLength:
    case FinishReason::kContext:
      add(length_);
      break;
    case FinishReason::kCancelled:
      add(cancelled_);
      break;
    case FinishReason::kFailed:
      add(failed_);
      break;
  }
}

void Metrics::on_round(std::uint32_t rows, std::uint32_t streams, double seconds) {
  add(rounds_);
  add(rows_, rows);
  add(streams_, streams);
  add(round_seconds_, seconds);
}

void Metrics::on_drafts(const DraftCounts& counts) {
  add(draft_rounds_, counts.rounds);
  for (std::size_t i = 0; i < DraftCounts::kDepths; ++i) {
    add(drafted_[i], counts.drafted[i]);
    add(accepted_[i], counts.accepted[i]);
  }
}

void Metrics::on_exchange(std::string_view method, std::string_view route, int status) {
  // Methods are the client's to invent; a counter for each would be a leak.
  static constexpr std::array<std::string_view, 7> kMethods{"GET",   "HEAD",   "POST",   "PUT",
                                                            "PATCH", "DELETE", "OPTIONS"};
  const bool known = std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
  const std::lock_guard lock(exchanges_mutex_);
  ++exchanges_[{std::string(known ? method : "other"), std::string(route), status}];
}

std::string Metrics::text(const ServiceStatus* status) const {
  const auto value = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  const ServiceStatus none;
  const ServiceStatus& now = status != nullptr ? *status : none;
  const std::uint64_t evaluated = value(prompt_evaluated_), cached = value(prompt_cached_);
  const std::uint64_t generated = value(generated_), rounds = value(rounds_);
  const double prompt_seconds = value(prompt_seconds_), decode_seconds = value(decode_seconds_);
  const double kv_share = rate(static_cast<double>(now.kv_used), static_cast<double>(now.kv_total));
  const double busy = rate(static_cast<double>(value(streams_)), static_cast<double>(rounds));
  // The first token of a reply comes with its prompt; decoding takes the steps after it.
  const std::uint64_t firsts = first_token_.snapshot().count();
  const double steps = static_cast<double>(generated - std::min(generated, firsts));

  Writer w;
  w.gauge("gem_model_loaded", status != nullptr ? 1 : 0, "Whether the model is open.");
  w.gauge("gem_requests_running", now.running, "Replies being made.");
  w.gauge("gem_requests_queued", now.queued, "Requests waiting for a slot.");
  w.gauge("gem_slots", now.slots.size(), "Replies that can be made at once.");
  w.gauge("gem_kv_positions_used", now.kv_used, "Positions held by the KV caches.");
  w.gauge("gem_kv_positions", now.kv_total, "Positions that the KV caches can hold.");
  w.gauge("gem_prompt_cache_bytes", now.prompt_cache.bytes, "Bytes of kept prompts' states.");
  w.gauge("gem_prompt_cache_budget_bytes", now.prompt_cache.budget, "Most bytes that they may take.");
  w.gauge("gem_prompt_cache_states", now.prompt_cache.states, "Kept prompts' states.");
  w.counter("gem_prompt_cache_restored_total", now.prompt_cache.restored,
            "Replies that began with one of them.");
  w.counter("gem_prompt_cache_evicted_total", now.prompt_cache.evicted, "States that left for want of room.");
  if (const CacheStore::Status& disk = now.prompt_cache.disk; disk.budget > 0) {
    w.gauge("gem_prompt_cache_disk_bytes", disk.bytes, "Bytes of kept prompts' files.");
    w.gauge("gem_prompt_cache_disk_budget_bytes", disk.budget, "Most bytes that they may take.");
    w.gauge("gem_prompt_cache_disk_states", disk.states, "Kept prompts on disk that may be resumed.");
    w.counter("gem_prompt_cache_disk_written_total", disk.written, "States written.");
    w.counter("gem_prompt_cache_disk_loaded_total", disk.loaded, "States read back.");
    w.counter("gem_prompt_cache_disk_evicted_total", disk.evicted, "Files that left for want of room.");
    w.counter("gem_prompt_cache_disk_skipped_total", disk.skipped,
              "States not written: too large, too many at once, the disk full.");
    w.counter("gem_prompt_cache_disk_rejected_total", disk.rejected, "Damaged files, removed.");
  }
  w.counter("gem_requests_accepted_total", value(queued_), "Replies asked for and queued.");
  w.head("gem_requests_total", "counter", "Replies by outcome.");
  w.sample("gem_requests_total", value(stop_), "outcome=\"stop\"");
  w.sample("gem_requests_total", value(tool_calls_), "outcome=\"tool_calls\"");
  w.sample("gem_requests_total", value(length_), "outcome=\"length\"");
  w.sample("gem_requests_total", value(cancelled_), "outcome=\"cancelled\"");
  w.sample("gem_requests_total", value(failed_), "outcome=\"failed\"");
  w.counter("gem_prompt_tokens_total", evaluated, "Prompt tokens evaluated.");
  w.counter("gem_prompt_tokens_cached_total", cached, "Prompt tokens resumed from kept states.");
  w.counter("gem_generated_tokens_total", generated, "Tokens drawn, thoughts and ends included.");
  w.counter("gem_prompt_seconds_total", prompt_seconds, "Time of reading prompts, per reply.");
  w.counter("gem_decode_seconds_total", decode_seconds, "Time of decoding, per reply.");
  w.counter("gem_rounds_total", rounds, "Rounds of the engine.");
  w.counter("gem_round_rows_total", value(rows_), "Rows in all rounds.");
  w.counter("gem_round_seconds_total", value(round_seconds_), "Time of all rounds.");
  std::uint64_t drafted = 0, accepted = 0;
  for (std::size_t i = 0; i < DraftCounts::kDepths; ++i) {
    drafted += value(drafted_[i]);
    accepted += value(accepted_[i]);
  }
  const auto by_position = [&](Writer& to, std::string_view name, const auto& counters, int first) {
    for (std::size_t i = 0; i < DraftCounts::kDepths; ++i)
      to.sample(name, value(counters[i]),
                fmt::format("position=\"{}\"", i + static_cast<std::size_t>(first)));
  };
  // Tokens a round: 1 + accepted / rounds.
  w.counter("gem_draft_rounds_total", value(draft_rounds_), "Rounds of a reply that checked drafts.");
  w.head("gem_draft_tokens_total", "counter", "Tokens drafted, by their place in the draft.");
  by_position(w, "gem_draft_tokens_total", drafted_, 1);
  w.head("gem_draft_tokens_accepted_total", "counter", "Drafted tokens that were kept, likewise.");
  by_position(w, "gem_draft_tokens_accepted_total", accepted_, 1);
  w.histogram("gem_time_to_first_token_seconds", first_token_, "From the request to its first token.");
  w.histogram("gem_inter_token_seconds", inter_token_, "Between the tokens of a reply.");
  w.histogram("gem_request_seconds", request_, "From the request to the end of its reply.");
  w.histogram("gem_queue_seconds", queue_, "From the request to its slot.");
  w.histogram("gem_request_prompt_tokens", prompt_tokens_,
              "Prompt tokens of a request, cached ones included.");
  w.histogram("gem_request_generated_tokens", reply_tokens_, "Tokens of a reply.");
  w.head("gem_http_requests_total", "counter",
         "HTTP exchanges by route and status; 0: the client left before one was sent.");
  {
    const std::lock_guard lock(exchanges_mutex_);
    for (const auto& [key, count] : exchanges_) {
      w.sample("gem_http_requests_total", count,
               fmt::format("method=\"{}\",route=\"{}\",code=\"{}\"", key.method, label_text(key.route),
                           key.status));
    }
  }
  w.gauge("process_resident_memory_bytes", resident_memory(), "Resident memory, mapped weights included.");
  w.gauge("process_start_time_seconds", started_, "Start of the process, Unix time.");

  // Names of llama-server, for dashboards that know them.
  w.counter("llamacpp:prompt_tokens_total", evaluated, "Prompt tokens evaluated.");
  w.counter("llamacpp:prompt_tokens_cached_total", cached, "Prompt tokens resumed from kept states.");
  w.counter("llamacpp:prompt_seconds_total", prompt_seconds, "Time of reading prompts.");
  w.counter("llamacpp:tokens_predicted_total", generated, "Tokens drawn.");
  w.counter("llamacpp:tokens_predicted_seconds_total", decode_seconds, "Time of decoding.");
  w.counter("llamacpp:n_decode_total", rounds, "Rounds of the engine.");
  w.counter("llamacpp:n_tokens_max", value(longest_), "Longest prompt and reply together.");
  w.gauge("llamacpp:prompt_tokens_seconds", rate(static_cast<double>(evaluated), prompt_seconds),
          "Prompt tokens per second, average.");
  w.gauge("llamacpp:predicted_tokens_seconds", rate(steps, decode_seconds),
          "Tokens drawn per second, average.");
  w.gauge("llamacpp:requests_processing", now.running, "Replies being made.");
  w.gauge("llamacpp:requests_deferred", now.queued, "Requests waiting for a slot.");
  w.gauge("llamacpp:n_busy_slots_per_decode", busy, "Streams in a round, average.");
  if (!options_.vllm_names) return std::move(w.text());

  Writer v(fmt::format("model_name=\"{}\"", label_text(options_.model_name)));
  v.gauge("vllm:num_requests_running", now.running, "Replies being made.");
  v.gauge("vllm:num_requests_waiting", now.queued, "Requests waiting for a slot.");
  v.gauge("vllm:kv_cache_usage_perc", kv_share, "Share of the KV caches in use, 1 is all.");
  v.counter("vllm:prompt_tokens_total", evaluated + cached, "Prompt tokens, cached ones included.");
  v.counter("vllm:generation_tokens_total", generated, "Tokens drawn.");
  v.counter("vllm:prefix_cache_queries_total", evaluated + cached, "Prompt tokens looked up.");
  v.counter("vllm:prefix_cache_hits_total", cached, "Prompt tokens resumed from kept states.");
  v.head("vllm:request_success_total", "counter", "Replies by the reason of their end.");
  v.sample("vllm:request_success_total", value(stop_) + value(tool_calls_), "finished_reason=\"stop\"");
  v.sample("vllm:request_success_total", value(length_), "finished_reason=\"length\"");
  v.sample("vllm:request_success_total", value(cancelled_), "finished_reason=\"abort\"");
  v.sample("vllm:request_success_total", value(failed_), "finished_reason=\"error\"");
  v.counter("vllm:spec_decode_num_drafts_total", value(draft_rounds_),
            "Rounds of a reply that checked drafts.");
  v.counter("vllm:spec_decode_num_draft_tokens_total", drafted, "Tokens drafted.");
  v.counter("vllm:spec_decode_num_accepted_tokens_total", accepted, "Drafted tokens that were kept.");
  v.head("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Drafted tokens that were kept, by their place in the draft.");
  by_position(v, "vllm:spec_decode_num_accepted_tokens_per_pos_total", accepted_, 0);
  v.histogram("vllm:time_to_first_token_seconds", first_token_, "From the request to its first token.");
  v.histogram("vllm:inter_token_latency_seconds", inter_token_, "Between the tokens of a reply.");
  v.histogram("vllm:e2e_request_latency_seconds", request_, "From the request to the end of its reply.");
  v.histogram("vllm:request_queue_time_seconds", queue_, "From the request to its slot.");
  v.histogram("vllm:request_prefill_time_seconds", prefill_, "Reading the prompt.");
  v.histogram("vllm:request_decode_time_seconds", decode_, "Decoding.");
  v.histogram("vllm:request_prompt_tokens", prompt_tokens_, "Prompt tokens of a request.");
  v.histogram("vllm:request_generation_tokens", reply_tokens_, "Tokens of a reply.");
  return w.text() + v.text();
}

}  // namespace gem::server
