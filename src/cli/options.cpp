#include "cli/options.h"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "cli/json_lines.h"
#include "cli/model_path.h"
#include "cli/progress_bar.h"

namespace gem::cli {

namespace {

// The whole of `text` as a number; std::invalid_argument when something follows it.
template <typename Convert>
auto whole(const std::string& text, const Convert& convert) {
  std::size_t used = 0;
  const auto value = convert(text, &used);
  if (used != text.size()) throw std::invalid_argument(text);
  return value;
}

}  // namespace

void ModelOptions::add_to(CLI::App& app, bool positional) {
  app.add_option(positional ? "model,-m,--model" : "-m,--model", model,
                 "A GGUF file, a folder with config.json and safetensors, or ORG/REPO[:PATTERN] that was "
                 "pulled (default: the bundled demo model)");
  app.add_option("--backend", backend, "auto (cuda where there is a device, else cpu), cpu, cuda or oracle")
      ->capture_default_str();
  app.add_option("--threads", threads, "Threads (default: one a physical core)")->check(CLI::Range(1, 1024));
  app.add_option("--context", context,
                 "Positions a conversation may hold (default: what the model was trained for, at most 32768)")
      ->check(CLI::Range(2u, 1u << 28));
  app.add_option("--device", device, "Of several devices, which one the cuda backend uses, from 0")
      ->check(CLI::Range(0, 1023));
  app.add_option("--chunk", chunk, "Prompt tokens read in one round (default: 256 on the CPU, 2048 on CUDA)")
      ->check(CLI::Range(1, 8192));
  app.add_option_function<std::string>(
         "--kv-type", [this](const std::string& name) { kv_type = kv_type_from_name(name); },
         "How keys and values are stored: f32, bf16, f16, or f16-full (f16 in the full layers, f32 in the "
         "sliding ones); default: f32 on cpu")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "f16-full"}));
  app.add_flag("--any-geometry", any_geometry,
               "Admit a consistent Gemma 4 geometry that is no published model");
}

void ModelOptions::add_drafts_to(CLI::App& app) {
  drafts.on = true;
  CLI::Option* file = app.add_option("--mtp", drafts.assistant,
                                     "The model's MTP assistant, which drafts tokens (default: mtp-<model's "
                                     "file name> or *assistant* beside the model)");
  app.add_flag("!--no-mtp", drafts.find, "Do not look for an assistant")->excludes(file);
  app.add_flag("--draft-copy,!--no-draft-copy", drafts.copy, "Draft by copying earlier text")
      ->default_str("true");
  app.add_option(
         "--draft-max", drafts.most,
         "Most tokens drafted for a reply in one round; 0 drafts nothing (default: 7 by an assistant, "
         "15 by copying; fewer, or none, where they do not pay)")
      ->check(CLI::Range(0, 15));
  app.add_option_function<std::string>(
         "--spec-sampling",
         [this](const std::string& name) {
           drafts.sampling = name == "rejection" ? SpecSampling::kRejection : SpecSampling::kKeyed;
         },
         "keyed: replies are what they are without drafts; rejection: they have the same distribution, by "
         "rejection and residual sampling")
      ->check(CLI::IsMember({"keyed", "rejection"}))
      ->default_str("keyed");
}

std::string ModelOptions::path() const {
  return model.empty() ? bundled_model() : resolve_model(model);
}

SessionOptions ModelOptions::session() const {
  SessionOptions s;
  s.model = path();
  s.backend = parse_backend(backend);
  s.backend_is_default = backend == "auto";
  s.threads = threads;
  s.context = context;
  s.chunk = chunk;
  s.device = device;
  s.any_geometry = any_geometry;
  s.drafts = drafts;
  s.kv_type = kv_type;
  return s;
}

std::unique_ptr<Backend> ModelOptions::backend_for(const Model& loaded) const {
  return make_backend(parse_backend(backend), loaded, threads, device);
}

void SamplingOptions::add_to(CLI::App& app) {
  app.add_option("--temperature,--temp", temperature, "0 is greedy (default: the model's, 1.0)");
  app.add_option("--top-k", top_k, "Keep the k most probable tokens; 0 keeps all (default: the model's, 64)");
  app.add_option("--top-p", top_p,
                 "Keep the most probable tokens up to this mass (default: the model's, 0.95)");
  app.add_option("--min-p", min_p,
                 "Keep tokens of at least this share of the best one's probability (default: 0)");
  app.add_option("--repetition-penalty", repetition,
                 "Divides the logits of tokens that occurred (default: 1)");
  app.add_option("--presence-penalty", presence, "Subtracted from tokens in the reply (default: 0)");
  app.add_option("--frequency-penalty", frequency,
                 "Subtracted once for each occurrence in the reply (default: 0)");
  app.add_option("--logit-bias", logit_bias, "ID:BIAS, added to a token's logit; -inf forbids it")
      ->take_all()
      ->allow_extra_args(false);
  // -1 is what other programs take for "random"; as an unsigned number it would be one seed among others.
  const auto read_seed = [this](const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool all = error == std::errc() && end == text.data() + text.size();
    if (!all && text != "-1")
      throw CLI::ValidationError("--seed", "expected a number from 0 to 2^64 - 1, or -1 for a random one");
    seed = all ? std::optional(value) : std::nullopt;
  };
  app.add_option_function<std::string>("--seed", read_seed,
                                       "Same seed, same reply (default: -1, a random one)")
      ->type_name("UINT");
  app.add_option("--max-tokens", max_tokens, "Longest reply in tokens (default: until the context is full)");
  app.add_option("--stop", stop, "Stop when this text appears (may be repeated)")
      ->take_all()
      ->allow_extra_args(false);
}

SamplingParams SamplingOptions::over(SamplingParams p) const {
  if (temperature) p.temperature = *temperature;
  if (top_k) p.top_k = *top_k;
  if (top_p) p.top_p = *top_p;
  if (min_p) p.min_p = *min_p;
  if (repetition) p.repetition_penalty = *repetition;
  if (presence) p.presence_penalty = *presence;
  if (frequency) p.frequency_penalty = *frequency;
  for (const std::string& entry : logit_bias) {
    const std::size_t colon = entry.find(':');
    try {
      if (colon == std::string::npos) throw std::invalid_argument(entry);
      p.logit_bias.emplace_back(
          whole(entry.substr(0, colon), [](const auto& s, auto* used) { return std::stoi(s, used); }),
          whole(entry.substr(colon + 1), [](const auto& s, auto* used) { return std::stof(s, used); }));
    } catch (const std::logic_error&) {
      fail(ErrorCode::kUsage, "--logit-bias {}: expected ID:BIAS", entry);
    }
  }
  p.seed = seed ? *seed : (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return p;
}

std::string bundled_model() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (const fs::path& folder : {program.parent_path() / "../share/gem", program.parent_path() / "../models",
                                 fs::path(GEM_SOURCE_DIR) / "models"}) {
    const fs::path path = folder / "gem-demo.gguf";
    if (fs::exists(path, ignored)) return path.lexically_normal().string();
  }
  fail(ErrorCode::kUsage, "the bundled model gem-demo.gguf is not beside the program; name a model with -m");
}

std::unique_ptr<Session> open_session(const ModelOptions& options) {
  SessionOptions session = options.session();
  ProgressBar bar("loading");
  session.load_progress = [&bar](std::uint64_t done, std::uint64_t total) { bar.show_bytes(done, total); };
  session.drafts.warn =
      session.notice = [](const std::string& text) { std::cerr << "gem: " << text << '\n'; };
  return Session::open(session);
}

std::string read_file(const std::string& path) {
  if (path == "-") return read_standard_input();
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;  // a folder opens, and fails only when it is read
  if (!file || std::filesystem::is_directory(path, ignored)) fail(ErrorCode::kUsage, "cannot read {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::int32_t> read_token_ids(const std::string& path, std::uint32_t vocab) {
  const std::string text = read_file(path);
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_array() || j.empty()) fail(ErrorCode::kUsage, "{}: expected a JSON array of token ids", path);
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : j) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocab) {
      fail(ErrorCode::kUsage, "{}: element {} is {}, expected a token id from 0 to {}", path, ids.size(),
           id.dump(), vocab - 1);
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::string human_bytes(std::uint64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b >= 1e9) return fmt::format("{:.2f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  return fmt::format("{:.1f} kB", b / 1e3);
}

}  // namespace gem::cli
