// The keys tokenizer.ggml.* of a GGUF file, from a checkpoint with a tokenizer.json.
#pragma once

#include "formats/checkpoint.h"
#include "formats/gguf_writer.h"

namespace gem {

// Pieces, types, merges and ids as converters of Gemma 4 write them. Adds nothing that `source` has already.
void add_gguf_tokenizer(const Checkpoint& source, GgufWriter& writer);

}  // namespace gem
