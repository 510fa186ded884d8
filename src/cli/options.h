// Options that several verbs share, and what they open.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/sampler.h"
#include "engine/session.h"

namespace gem::cli {

// -m, --backend, --threads, --context, --chunk, --kv-type, --any-geometry
struct ModelOptions {
  std::string model;
  std::string backend = "auto";
  unsigned threads = 0;
  std::uint32_t context = 0;
  std::uint32_t chunk = 0;  // 0: the backend's
  std::optional<int> device;
  bool any_geometry = false;
  std::optional<KvType> kv_type;  // nothing: the backend's first
  SessionDrafts drafts;           // off where add_drafts_to was not called

  void add_to(CLI::App& app, bool positional = false);
  void add_drafts_to(CLI::App& app);  // --mtp, --no-mtp, --draft-max, …
  std::string path() const;  // the bundled model where none was named; a repository is looked up in the cache
  SessionOptions session() const;
  std::unique_ptr<Backend> backend_for(const Model& loaded) const;
  std::uint32_t chunk_on(const Backend& used) const { return chunk != 0 ? chunk : used.preferred_chunk(); }
};

// --temperature, --top-k, …; unset ones take the model's defaults.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, repetition, presence, frequency;
  std::optional<std::uint32_t> top_k;
  std::optional<std::uint64_t> seed;
  std::uint32_t max_tokens = 0;
  std::vector<std::string> stop;
  std::vector<std::string> logit_bias;  // ID:BIAS

  void add_to(CLI::App& app);
  SamplingParams over(SamplingParams defaults) const;
};

// The bundled demo model: beside the program, in its data folder, or in the source tree. Error(kUsage) when
// there is none.
std::string bundled_model();

// Opens a session, with a line of progress on a terminal.
std::unique_ptr<Session> open_session(const ModelOptions& options);

std::string read_file(const std::string& path);  // "-" reads standard input; Error(kUsage)
// A JSON array of token ids below `vocab`, at least one. Error(kUsage).
std::vector<std::int32_t> read_token_ids(const std::string& path, std::uint32_t vocab);
std::string human_bytes(std::uint64_t bytes);  // "7.20 GB"

}  // namespace gem::cli
