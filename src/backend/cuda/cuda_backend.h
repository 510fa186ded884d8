// The backend's rounds: decode rows through the persistent kernel, prompt rows through tiles and cuBLASLt.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/attention_plan.h"
#include "backend/cuda/best.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_cache.h"
#include "backend/cuda/device_model.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/prompt.h"

namespace gem::cuda {

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Rows of a round are kept with the decode rows first, then those of prompts; `order_` leads from the round's
// own order to that.
class CudaBackend final : public Backend {
 public:
  // `model`: of that geometry, for those weights. `target`: the model whose assistant this is, on the same
  // device; null for a model of its own.
  CudaBackend(const Geometry& geometry, const Weights& weights, const CudaDevice& device,
              std::shared_ptr<DeviceModel> model, std::shared_ptr<const DeviceModel> target = nullptr);
  // With a device model of its own.
  static std::unique_ptr<CudaBackend> make(const Geometry& geometry, const Weights& weights,
                                           const CudaDevice& device);

  const char* name() const override { return "cuda"; }
  std::string description() const override;

  std::unique_ptr<KvCache> new_cache(const KvPlan& plan) override;
  std::span<const KvType> kv_types() const override;
  std::uint32_t kv_element_bytes(StorageType storage) const override {
    return storage == StorageType::kF32 ? 4 : 2;
  }
  std::uint32_t preferred_chunk() const override { return 2048; }
  bool use_less_memory() override;
  std::uint64_t scratch_bytes(std::uint32_t rows, std::uint32_t logit_rows) const override;
  std::optional<std::uint64_t> weight_bytes() const override;
  std::optional<std::uint64_t> device_memory() const override;
  void load_weights(const Progress& progress) override;
  bool decode_equals_prompt() const override { return false; }
  std::unique_ptr<Backend> new_assistant(const Geometry& geometry, const Weights& weights,
                                         ReleaseWeights release) override;
  bool drafts() const override { return true; }
  std::unique_ptr<Backend> new_lane() override;
  void settle() override { wait("running a round"); }

  void begin(const RoundRows& round) override;
  void embed() override;
  void attn_input(std::uint32_t layer) override;
  void qk_prep(std::uint32_t layer) override;
  void attention(std::uint32_t layer) override;
  void attn_output(std::uint32_t layer) override;
  void ffn_input(std::uint32_t layer) override;
  void ffn_output(std::uint32_t layer) override;
  void final_norm() override;
  void head() override;
  void post_project() override;
  bool run_all() override;
  bool run_chain(std::uint32_t steps, std::span<const KeyedDraw> draws,
                 std::span<std::int32_t> tokens) override;
  std::uint32_t most_best() const override { return best_serves(g_.vocab) ? std::min(kBest, g_.vocab) : 0; }

  std::vector<float> read(Activation which) const override;
  void write(Activation which, std::span<const float> values) override;
  std::span<const float> logits(std::uint32_t index) const override;
  std::span<const ScoredToken> best_logits(std::uint32_t index) const override;

 private:
  // Elements of the buffers that a round needs.
  struct RoundSizes {
    std::size_t residual = 0, between = 0, qkv = 0, branch = 0, both = 0, query = 0, operand = 0, origins = 0,
                sums = 0, turns = 0, stats = 0;
    std::size_t prompt_qkv = 0, prompt_both = 0, prompt_hidden = 0, prompt_attended = 0, prompt_activated = 0,
                expanded = 0;
    std::size_t finals = 0, head = 0, logits = 0, best = 0, best_rows = 0, pairs = 0, next = 0;
    std::uint64_t bytes() const;
  };
  // Rows of a pass of the decode kernel in a round of so many.
  std::uint32_t pass_rows(std::uint32_t decode_rows, std::uint32_t logit_rows) const;
  RoundSizes sizes_of(std::uint32_t decode_rows, std::uint32_t prompt_rows, std::uint32_t logit_rows,
                      std::uint32_t final_rows, const std::uint32_t (&units)[2]) const;
  void reserve();
  void upload_round();
  // Starts all stages of the round up to its logits.
  void start_stages();
  // The round as the decode kernel gets it, with those phases of one layer, or of all.
  DecodeJob job(std::uint32_t phases) const;
  void run_stage(std::uint32_t layer, std::uint32_t phases);
  template <typename T>
  void fetch(T* to, const T* from, std::size_t count) const;
  void fetch_results();
  bool is_assistant() const { return target_ != nullptr; }
  // Device memory for what the prompt cache keeps of one stream at a time.
  std::size_t snapshot_bytes() const;

  // The prompt rows' part of the stages.
  void prompt_attn_input(const DeviceLayer& l);
  void prompt_qk_prep(const DeviceLayer& l, std::uint32_t layer);
  void prompt_attention(const DeviceLayer& l, std::uint32_t layer);
  void prompt_attn_output(const DeviceLayer& l);
  void prompt_ffn_input(const DeviceLayer& l);
  void prompt_ffn_output(const DeviceLayer& l);
  void prompt_product(const DeviceLayer& l, std::size_t which, std::uint32_t cols, const std::uint16_t* x,
                      float* out);
  float* prompt_residual() const { return residual_.data() + std::size_t{decode_rows_} * g_.hidden; }

  void copy_to(void* device, const void* host, std::size_t bytes);
  void wait(const char* what) const { check(cudaStreamSynchronize(stream_), what); }

  // Stage borders.
  std::vector<float> in_round_order(const std::vector<float>& rows, std::uint32_t width) const;
  std::vector<float> in_own_order(std::span<const float> rows, std::uint32_t width) const;
  std::vector<float> read_columns(std::uint32_t first, std::uint32_t width) const;
  void write_columns(std::uint32_t first, std::uint32_t width, std::span<const float> values);
  std::vector<float> read_rows(const DecodeOp& op, const DeviceArray<std::uint16_t>& prompt,
                               std::uint32_t width) const;
  void write_rows(const DecodeOp& op, const DeviceArray<std::uint16_t>& prompt, std::uint32_t width,
                  std::span<const float> values);

  const Geometry& g_;
  const Weights& weights_;
  CudaDevice device_;
  DecodeLimits limits_;
  Stream stream_;
  std::shared_ptr<DeviceModel> shared_model_;  // with the lanes
  DeviceModel& model_;
  std::shared_ptr<const DeviceModel> target_;

  // The round.
  std::uint32_t rows_ = 0, decode_rows_ = 0, prompt_rows_ = 0, finals_ = 0, logit_count_ = 0;
  // Of attention, in sliding and full layers.
  AttentionWork work_[2];
  bool prepares_ = false;  // heads in a phase of their own: there are spans of more than two decode rows
  bool halves_[2] = {};
  std::vector<std::uint32_t> order_;
  std::vector<RowInfo> row_host_;
  std::vector<PromptTile> tiles_host_;
  std::vector<std::uint32_t> final_host_, logit_rows_;
  std::vector<CacheLayer> sources_;  // an assistant's: [rows][layers], what they read of the target's caches
  std::span<const float> embeddings_, hidden_;
  std::uint32_t current_ = 0;  // layer of the last stage that has heads
  bool prepared_ = false;      // query_ holds the current layer's prepared queries
  // Of all caches.
  std::shared_ptr<CacheStaging> staging_;
  std::shared_ptr<CacheSnapshots> snapshots_;
  // What the kernels of the round read, in one copy.
  PinnedArray<std::byte> round_host_;
  DeviceArray<std::byte> round_device_;
  unsigned* barrier_ = nullptr;
  RowInfo* rows_device_ = nullptr;
  const PromptTile* tiles_device_ = nullptr;
  const std::uint32_t* finals_device_ = nullptr;
  const std::uint32_t* logits_device_ = nullptr;
  const float* hidden_device_ = nullptr;  // an assistant's: [rows, backbone]

  DeviceArray<float> residual_, between_, qkv_, branch_, both_, query_, sums_;
  DeviceArray<float> final_rows_, head_, logits_, pairs_, next_;
  DeviceArray<float2> stats_, turns_;
  DeviceArray<uint2> origins_;
  DeviceArray<std::uint32_t> operand_;
  DeviceArray<float> prompt_qkv_, prompt_branch_, prompt_both_;
  DeviceArray<std::uint16_t> prompt_x_, prompt_attended_, prompt_activated_, expanded_;
  std::optional<Gemm> gemm_;  // from the first rows of a prompt on
  DeviceArray<float> maxima_;
  DeviceArray<BestRow> best_;
  PinnedArray<float> next_host_, finals_host_;
  bool finals_fetched_ = false;
  PinnedArray<BestRow> best_host_;
  // Of chains without a look in between.
  DeviceArray<KeyedDraw> draws_;
  DeviceArray<std::int32_t> taken_;
  PinnedArray<std::int32_t> taken_host_;
  // Rows of logits as far as they were asked for.
  mutable PinnedArray<float> logits_host_;
  mutable std::vector<bool> logits_fetched_;
};

}  // namespace gem::cuda
