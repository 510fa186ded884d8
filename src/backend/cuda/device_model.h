// A model's weights on the device, and the tables by which the decode kernel finds them.
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/decode.h"
#include "backend/cuda/packed.h"
#include "backend/geometry.h"

namespace gem::cuda {

struct DeviceLayer {
  PackedMatrix q, k, v, o, gate, up, down;
  // The matrices of a product of the prompt path side by side in bf16, where they are kept so (DeviceModel):
  // q, k and v; o; gate and up; down.
  DeviceArray<std::uint16_t> expanded[kOpsOfLayer];
  // What a product of the decode path multiplies, in the order of DecodeOp.
  std::vector<const PackedMatrix*> matrices(std::size_t which) const;
  DeviceArray<float> attn_norm, q_norm, k_norm, post_attention_norm, ffn_norm, post_ffw_norm;
  float scale = 1;
  HeadShape shape;
  std::uint32_t window = 0;  // 0: all keys
  std::uint32_t query_width = 0, kv_width = 0;
  std::uint32_t qkv_width() const {
    return query_width + (!shape.own_keys ? 0 : shape.value_from_key ? kv_width : 2 * kv_width);
  }
};

class DeviceModel {
 public:
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

  // Error(kRefused) for geometries without kernels.
  DeviceModel(const Geometry& geometry, const DecodeLimits& limits);
  // Packs and uploads; `progress` may be empty. Error(kTooLarge) when the device has no room.
  void load(const Weights& weights, cudaStream_t stream, const Progress& progress);
  bool loaded() const { return !layers.empty(); }
  // Whether load() keeps the layers' matrices in bf16 as well, so that a chunk of a prompt need not expand
  // them.
  bool keep_expanded = false;
  std::uint64_t expanded_bytes() const;
  // Bytes on the device, exact before loading.
  std::uint64_t bytes(const Weights& weights) const;

  // Most parts that a product is cut into; known before loading.
  std::uint32_t most_parts() const;

  const DecodeOp& op(std::size_t layer, std::size_t which) const {
    return host_ops[layer * kOpsOfLayer + which];
  }
  const DecodeOp& head() const { return host_ops.back(); }
  const double* frequencies(const DeviceLayer& layer) const {
    return frequency_tables[layer.window == 0 ? 1 : 0].data();
  }
  // Fills what a job knows of the model.
  void describe(DecodeJob& job) const;

  std::vector<DeviceLayer> layers;
  PackedMatrix table;
  PackedMatrix pre, post;  // an assistant's projections
  DeviceArray<float> output_norm;
  std::vector<DecodeOp> host_ops;
  DecodeSizes sizes;
  std::uint32_t head_dims[2] = {};  // of sliding and full layers; 0: there is none
  std::uint32_t kv_heads[2] = {};   // the most of any layer

 private:
  DeviceLayer make_layer(const LayerWeights& weights, std::size_t index, Packer& packer,
                         cudaStream_t stream) const;
  void expand(DeviceLayer& layer, cudaStream_t stream) const;
  void make_tables(cudaStream_t stream);
  std::vector<double> make_frequencies(LayerKind kind, const Weights& weights) const;

  // Every guess of an assistant is checked, so its weights may be rounded.
  Precision precision() const { return g_.backbone != 0 ? Precision::kFourBits : Precision::kKept; }

  const Geometry& g_;
  DecodeLimits limits_;
  DeviceArray<double> frequency_tables[2];  // sliding, full
  std::vector<DecodeCut> cuts_;             // of the products, each once
  DeviceArray<DecodeLayer> decode_layers_;
  DeviceArray<DecodeOp> decode_ops_;
};

}  // namespace gem::cuda
