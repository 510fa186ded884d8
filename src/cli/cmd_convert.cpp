// gem convert: a checkpoint in another storage.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "model/convert.h"
#include "text/tokenizer_gguf_keys.h"

namespace gem::cli {

void add_convert(CLI::App& app) {
  struct Options {
    ConvertOptions convert;
    std::string target;
  };
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "convert", "Write a checkpoint in another storage: MLX affine, GGUF Q4_0 or Q8_0, bf16");
  sub->add_option("source", o->convert.source,
                  "A folder with config.json and safetensors files, or a GGUF file, in bf16, f16 or f32")
      ->required();
  sub->add_option(
         "--to", o->target,
         "mlx-q4g64 (2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128), gguf-q4_0, gguf-q8_0 or bf16")
      ->required();
  sub->add_option("-o,--out", o->convert.out,
                  "The folder to write, of a GGUF target the file. An interrupted conversion into a folder "
                  "goes on where it stopped, file by file")
      ->required();
  sub->add_flag("--keep-vision", o->convert.keep_vision,
                "Keep the image tensors, as they are (default: the text model alone)");
  sub->add_option("--threads", o->convert.threads, "Threads (default: one a physical core)")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--shard-mb", o->convert.shard_bytes, "Size of one safetensors file in MB (default: 5369)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 30));
  sub->add_flag("--any-geometry", o->convert.any_geometry,
                "Admit a consistent Gemma 4 geometry that is no published model");
  sub->callback([o, sub] {
    ConvertOptions& c = o->convert;
    c.target = ConvertTarget::parse(o->target);
    if (sub->count("--shard-mb") != 0) c.shard_bytes *= 1'000'000;
    c.add_tokenizer = add_gguf_tokenizer;
    ProgressBar progress("converting");
    c.progress = [&](std::uint64_t done, std::uint64_t total) { progress.show_bytes(done, total); };
    const ConvertReport r = convert_checkpoint(c);
    progress.clear();
    fmt::print("{} as {}: {} in {} file{}{}\n", r.title, c.target.name(), human_bytes(r.bytes),
               r.files.size(), r.files.size() == 1 ? "" : "s",
               r.resumed == 0 ? "" : fmt::format(" ({} from an earlier run)", r.resumed));
    fmt::print("read back: every byte; {} rows against the source, relative error {:.2g}\n", r.rows_checked,
               r.relative_error);
  });
}

}  // namespace gem::cli
