// The seeds of the fuzz harnesses, also where there is no libFuzzer: the ones named "sound..." are read, and
// the malformed ones are refused. A few are sound containers whose content is for other layers to refuse.
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace gem {
namespace {

void check_corpus(const std::string& folder, const std::set<std::string>& also_sound,
                  const std::function<void(std::span<const std::byte>)>& read) {
  int files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(GEM_SOURCE_DIR) + "/tests/fuzz/corpus/" + folder)) {
    const std::string name = file.path().filename().string();
    std::ifstream stream(file.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    const auto view = std::as_bytes(std::span(text.data(), text.size()));
    const std::vector<std::byte> bytes(view.begin(), view.end());
    ++files;
    if (name.starts_with("sound") || also_sound.count(name) != 0) {
      EXPECT_NO_THROW(read(bytes)) << folder << '/' << name;
    } else {
      EXPECT_THROW(read(bytes), Error) << folder << '/' << name;
    }
  }
  EXPECT_GT(files, 20);
}

TEST(Corpus, Gguf) {
  check_corpus("gguf", {"26-nan", "29-nan-scale", "30-split"}, [](std::span<const std::byte> bytes) {
    Checkpoint checkpoint;
    read_gguf(bytes, "seed", checkpoint);
  });
}

TEST(Corpus, Safetensors) {
  check_corpus("safetensors", {},
               [](std::span<const std::byte> bytes) { SafetensorsFile::parse(bytes, "seed"); });
}

}  // namespace
}  // namespace gem
