// How config.json declares the widths of an MLX checkpoint's modules.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/affine.h"
#include "formats/json_document.h"

namespace gem {

class HfQuantization {
 public:
  // Reads `quantization` and `quantization_config`, which must agree where both are there. Error(kRefused)
  // for widths, groups and modes that gem does not read, by name, and for two spellings of one module that
  // disagree.
  static HfQuantization read(const JsonFields& config);

  bool declared() const { return default_.has_value(); }

  // Bits and group of the module (a core name without ".weight") whose codes have scales beside them.
  // Error(kRefused) when the config declares none for it.
  Affine of(const std::string& module) const;
  // A module without scales must not be declared as one with. Error(kRefused).
  void check_plain(const std::string& module) const;
  // Error(kRefused) for an override whose module `exists` does not know. Those of image and audio parts may
  // name what is not in the files.
  template <typename Exists>
  void check_modules(const Exists& exists) const {
    for (const auto& [module, entry] : modules_) check_module(module, entry, exists(module));
  }

 private:
  struct Entry {
    std::string path;              // as the config spells it
    std::optional<Affine> affine;  // nothing: `false`
  };
  void read_entry(const JsonFields& fields, const std::string& key);
  void check_module(const std::string& module, const Entry& entry, bool exists) const;

  std::string where_;
  std::optional<Affine> default_;
  std::map<std::string, Entry> modules_;  // by core name
};

}  // namespace gem
