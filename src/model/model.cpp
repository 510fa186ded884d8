#include "model/model.h"

#include <algorithm>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "backend/oracle/oracle.h"
#include "base/error.h"
#include "model/manifest.h"
#include "model/weights.h"

namespace gem {

std::unique_ptr<Model> Model::load(const std::string& path, const AdmissionOptions& options) {
  std::unique_ptr<Model> model(new Model());
  model->path_ = path;
  model->checkpoint_ = open_checkpoint(path);
  try {
    model->profile_ = read_profile(model->checkpoint_, options);
    if (model->profile_.role == ModelRole::kAssistant) {
      fail(ErrorCode::kRefused,
           "this is the {}: a drafter that runs beside its target, not a model of its own",
           model->profile_.title);
    }
    check_manifest(model->checkpoint_, model->profile_);
    model->weights_ = bind_weights(model->checkpoint_, model->profile_);
  } catch (const Error& e) {
    throw Error(e.code(), path + ": " + e.what());
  }
  return model;
}

BackendKind parse_backend(const std::string& name) {
  if (name == "auto") return cuda_devices().empty() ? BackendKind::kCpu : BackendKind::kCuda;
  if (name == "oracle") return BackendKind::kOracle;
  if (name == "cpu") return BackendKind::kCpu;
  if (name == "cuda" && cuda_built()) return BackendKind::kCuda;
  if (name == "cuda" || name == "metal")
    fail(ErrorCode::kUsage, "this build of gem has no {} backend (it has cpu and oracle)", name);
  fail(ErrorCode::kUsage, "unknown backend {:?} (known: auto, cpu, cuda, oracle)", name);
}

void require_user_of_device(BackendKind kind, std::optional<int> device) {
  if (device && kind != BackendKind::kCuda)
    fail(ErrorCode::kUsage, "--device chooses among the devices of the cuda backend, which is not in use");
}

std::unique_ptr<Backend> make_backend(BackendKind kind, const Model& model, unsigned threads,
                                      std::optional<int> device) {
  require_user_of_device(kind, device);
  if (kind == BackendKind::kOracle) return make_oracle_backend(model.geometry(), model.weights());
  if (kind == BackendKind::kCuda) return make_cuda_backend(model.geometry(), model.weights(), {device});
  return make_cpu_backend(model.geometry(), model.weights(), threads,
                          [&model](std::span<const std::byte> bytes) { model.checkpoint().release(bytes); });
}

std::map<std::string, StorageCount> count_storage(const Checkpoint& checkpoint) {
  std::map<std::string, StorageCount> counts;
  for (const TensorView& tensor : checkpoint.tensors()) {
    StorageCount& count = counts[tensor.storage_name()];
    ++count.tensors;
    count.bytes += tensor.stored_bytes();
  }
  return counts;
}

MemoryPlan plan_caches(const Geometry& geometry, const Backend& backend, const MemoryOptions& options) {
  MemoryPlan plan;
  plan.context = options.context;
  plan.streams = options.streams;
  // A full prompt chunk beside the rows of every other stream; or those of all streams.
  const std::uint32_t rows = 1 + options.drafts;
  plan.round_rows = std::max(options.chunk + (options.streams - 1) * rows, options.streams * rows);
  plan.kv_type = choose_kv_type(backend, options.kv_type);
  const KvPlan kv = KvPlan::make(geometry, options.context, options.chunk, plan.kv_type);
  const KvBytes bytes = kv.bytes([&](StorageType storage) { return backend.kv_element_bytes(storage); });
  plan.kv_stream = bytes.slots;
  plan.kv_spans = bytes.spans;
  if (options.checkpoints) plan.kv_undo = bytes.undo;
  plan.scratch = backend.scratch_bytes(plan.round_rows, options.streams * rows);
  plan.drafter = options.drafter;
  return plan;
}

MemoryPlan plan_memory(const Model& model, const Backend& backend, const MemoryOptions& options) {
  MemoryPlan plan = plan_caches(model.geometry(), backend, options);
  for (const TensorView& tensor : model.checkpoint().tensors()) plan.weights += tensor.stored_bytes();
  plan.weights = backend.weight_bytes().value_or(plan.weights);
  // Measured: a vocabulary of 262,144 pieces and its merges take about 60 MB, the program itself 10 MB.
  plan.tables = 10'000'000 + std::uint64_t{model.geometry().vocab} * 230;
  return plan;
}

}  // namespace gem
