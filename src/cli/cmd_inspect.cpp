// gem inspect: what a checkpoint is, how it is stored, what running it takes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "model/manifest.h"

namespace gem::cli {
namespace {

struct Options {
  ModelOptions model;
  std::uint32_t streams = 1;
  bool json = false;
};

struct Findings {
  Profile profile;
  std::size_t manifest = 0;
  std::size_t media = 0;
  MemoryPlan plan;  // trunks only
};

Findings examine(const Options& o, const Checkpoint& checkpoint) {
  Findings f;
  f.profile = read_profile(checkpoint, {.any_geometry = o.model.any_geometry});
  check_manifest(checkpoint, f.profile);
  f.manifest = make_manifest(f.profile).size();
  for (const TensorView& t : checkpoint.tensors()) f.media += is_media_tensor(t.name) ? 1 : 0;
  if (f.profile.role == ModelRole::kTrunk) {
    const auto model = Model::load(o.model.path(), {.any_geometry = o.model.any_geometry});
    const auto backend = o.model.backend_for(*model);
    const std::uint32_t trained = f.profile.geometry.context;
    const std::uint32_t context = o.model.context != 0 ? o.model.context : std::min(trained, kDefaultContext);
    if (context > trained)
      fail(ErrorCode::kUsage, "a context of {} was asked for, the model was trained for {}", context,
           trained);
    f.plan = plan_memory(*model, *backend,
                         {.context = context,
                          .streams = o.streams,
                          .chunk = std::min(o.model.chunk_on(*backend), context),
                          .kv_type = o.model.kv_type});
  }
  return f;
}

void print_json(const Findings& f, const Checkpoint& c, const std::string& path) {
  const Geometry& g = f.profile.geometry;
  nlohmann::ordered_json j;
  j["path"] = path;
  j["files"] = c.files();
  j["file_bytes"] = c.file_bytes();
  j["profile"] = f.profile.name;
  j["title"] = f.profile.title;
  j["role"] = f.profile.role == ModelRole::kTrunk ? "trunk" : "assistant";
  j["name"] = c.string("general.name").value_or("");
  auto& geometry = j["geometry"];
  geometry["layers"] = g.layers.size();
  geometry["hidden"] = g.hidden;
  geometry["ffn"] = g.ffn;
  geometry["heads"] = g.heads;
  geometry["window"] = g.window;
  geometry["vocab"] = g.vocab;
  geometry["context"] = g.context;
  if (f.profile.backbone != 0) geometry["backbone"] = f.profile.backbone;
  j["tensors"] = c.tensors().size();
  j["manifest"] = f.manifest;
  j["media_tensors"] = f.media;
  for (const auto& [type, count] : count_storage(c))
    j["storage"][type] = {{"tensors", count.tensors}, {"bytes", count.bytes}};
  if (f.profile.role == ModelRole::kTrunk) {
    const MemoryPlan& p = f.plan;
    j["memory"] = {{"context", p.context}, {"streams", p.streams},     {"kv_type", kv_type_name(p.kv_type)},
                   {"weights", p.weights}, {"kv_stream", p.kv_stream}, {"kv_spans", p.kv_spans},
                   {"kv_undo", p.kv_undo}, {"scratch", p.scratch},     {"tables", p.tables},
                   {"total", p.total()}};
  }
  fmt::print("{}\n", j.dump(2));
}

void print_text(const Findings& f, const Checkpoint& c, const std::string& path) {
  const Geometry& g = f.profile.geometry;
  std::size_t full = 0;
  for (const LayerGeometry& l : g.layers) full += l.kind == LayerKind::kFull ? 1 : 0;
  fmt::print("{}\n  profile   {} ({})\n", path, f.profile.name, f.profile.title);
  if (const auto name = c.string("general.name")) fmt::print("  name      {}\n", *name);
  fmt::print(
      "  geometry  {} layers ({} sliding, {} full), width {}, FFN {}, {} heads, window {}, vocabulary {}, "
      "context {}\n",
      g.layers.size(), g.layers.size() - full, full, g.hidden, g.ffn, g.heads, g.window, g.vocab, g.context);
  if (f.profile.backbone != 0) fmt::print("  target    hidden width {}\n", f.profile.backbone);
  fmt::print("  tensors   {} of {} in the manifest{}\n", f.manifest, f.manifest,
             f.media == 0 ? "" : fmt::format(", {} of vision or audio beside it (not used)", f.media));
  fmt::print("  files     {}, {}\n\n", c.files().size(), human_bytes(c.file_bytes()));
  fmt::print("  storage   tensors        bytes\n");
  for (const auto& [type, count] : count_storage(c))
    fmt::print("  {:<8} {:>8} {:>12}\n", type, count.tensors, human_bytes(count.bytes));
  if (f.profile.role != ModelRole::kTrunk) return;
  fmt::print("\n  memory for {} stream{} of {} positions (KV type {})\n", f.plan.streams,
             f.plan.streams == 1 ? "" : "s", f.plan.context, kv_type_name(f.plan.kv_type));
  fmt::print("  weights   {:>12}   mapped, shared with the page cache\n", human_bytes(f.plan.weights));
  fmt::print("  KV cache  {:>12}   a stream, when its context is full ({} of it for the rows of a round)\n",
             human_bytes(f.plan.kv_stream), human_bytes(f.plan.kv_spans));
  fmt::print("  KV undo   {:>12}   a stream, while a long reply runs or is kept\n",
             human_bytes(f.plan.kv_undo));
  fmt::print("  scratch   {:>12}\n  tables    {:>12}\n  total     {:>12}\n", human_bytes(f.plan.scratch),
             human_bytes(f.plan.tables), human_bytes(f.plan.total()));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("inspect", "Profile, tensors, storage types and memory plan of a checkpoint");
  o->model.add_to(*sub, true);
  sub->add_option("--streams", o->streams, "Streams in the memory plan")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  sub->add_flag("--json", o->json, "Machine-readable output");
  sub->callback([o] {
    const std::string path = o->model.path();
    const Checkpoint checkpoint = open_checkpoint(path);
    Findings findings;
    try {
      findings = examine(*o, checkpoint);
    } catch (const Error& e) {
      const std::string what = e.what();
      throw Error(e.code(), what.starts_with(path) ? what : path + ": " + what);
    }
    o->json ? print_json(findings, checkpoint, path) : print_text(findings, checkpoint, path);
  });
}

}  // namespace gem::cli
