// gem convert into a folder of safetensors files, as mlx-lm and Hugging Face's programs read them.
#pragma once

#include "model/convert.h"
#include "model/convert_rows.h"

namespace gem {

// Writes the files of options.out, or those that an interrupted run did not.
void write_folder(const ConvertOptions& options, const Checkpoint& source, const Profile& profile,
                  RowEncoder& encoder, ConvertReport& report);

}  // namespace gem
