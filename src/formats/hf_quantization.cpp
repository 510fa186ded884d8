#include "formats/hf_quantization.h"

#include "base/error.h"
#include "formats/hf_names.h"
#include "formats/names.h"

namespace gem {
namespace {

// mlx-lm hands an override to its quantiser as arguments, so that what it leaves out is the library's
// default, not the file's.
constexpr std::int64_t kLibraryBits = 4;
constexpr std::int64_t kLibraryGroup = 64;

Affine read_width(const JsonFields& fields) {
  if (const auto mode = fields.string("mode"); mode && *mode != "affine")
    fail(ErrorCode::kRefused, "{} is {}; gem reads MLX's affine mode only", fields.name("mode"),
         shown(*mode));
  Affine affine;
  const std::int64_t bits = fields.integer("bits", 0, 1 << 20).value_or(kLibraryBits);
  const std::int64_t group = fields.integer("group_size", 0, 1 << 20).value_or(kLibraryGroup);
  if (!Affine::knows_bits(static_cast<std::uint64_t>(bits)))
    fail(ErrorCode::kRefused, "{} is {}, expected 2, 3, 4, 5, 6 or 8", fields.name("bits"), bits);
  if (!Affine::knows_group(static_cast<std::uint64_t>(group)))
    fail(ErrorCode::kRefused, "{} is {}, expected 32, 64 or 128", fields.name("group_size"), group);
  affine.bits = static_cast<std::uint32_t>(bits);
  affine.group = static_cast<std::uint32_t>(group);
  return affine;
}

bool is_width_key(std::string_view key) {
  return key == "bits" || key == "group_size" || key == "mode";
}

}  // namespace

void HfQuantization::read_entry(const JsonFields& fields, const std::string& key) {
  Entry entry;
  entry.path = key;
  const nlohmann::json& value = fields.json().at(key);
  if (value.is_boolean()) {
    if (value.get<bool>()) entry.affine = default_;
  } else if (value.is_object()) {
    const JsonFields width = *fields.object(key);
    for (const auto& item : value.items()) {
      if (!is_width_key(item.key()))
        fail(ErrorCode::kRefused, "{}: unknown field {}; expected bits, group_size and mode",
             fields.name(key), shown(item.key()));
    }
    entry.affine = read_width(width);
  } else {
    fields.fail_type(key, "the widths of a module: an object, true or false");
  }
  const std::string core = hf_core_name(key);
  const auto [place, added] = modules_.try_emplace(core, entry);
  if (added) return;
  const std::optional<Affine>& other = place->second.affine;
  const bool same = other.has_value() == entry.affine.has_value() &&
                    (!other || (other->bits == entry.affine->bits && other->group == entry.affine->group));
  if (!same)
    fail(ErrorCode::kRefused, "{} and {} name the same module and disagree", fields.name(key),
         shown(place->second.path));
}

HfQuantization HfQuantization::read(const JsonFields& config) {
  HfQuantization out;
  const auto first = config.object("quantization");
  const auto second = config.object("quantization_config");
  if (!first && !second) return out;
  if (first && second && first->json() != second->json())
    fail(ErrorCode::kRefused, "{} and quantization_config disagree", config.name("quantization"));
  const JsonFields& fields = first ? *first : *second;
  out.where_ = config.name(first ? "quantization" : "quantization_config");
  if (const auto method = fields.string("quant_method"); method)
    fail(ErrorCode::kRefused, "{} is {}; gem reads MLX's affine quantisation only",
         fields.name("quant_method"), shown(*method));
  out.default_ = read_width(fields);
  for (const auto& item : fields.json().items()) {
    if (!is_width_key(item.key())) out.read_entry(fields, item.key());
  }
  return out;
}

Affine HfQuantization::of(const std::string& module) const {
  if (!default_)
    fail(ErrorCode::kRefused, "{} has scales beside its codes, but config.json declares no quantization",
         shown(module));
  const auto found = modules_.find(module);
  if (found == modules_.end()) return *default_;
  if (!found->second.affine)
    fail(ErrorCode::kRefused, "{} has scales beside its codes, but {} says that it is not quantised",
         shown(module), where_);
  return *found->second.affine;
}

void HfQuantization::check_plain(const std::string& module) const {
  const auto found = modules_.find(module);
  if (found != modules_.end() && found->second.affine)
    fail(ErrorCode::kRefused, "{} is declared as {} by {}, but there is no {}.scales", shown(module),
         found->second.affine->name(), where_, shown(module));
}

void HfQuantization::check_module(const std::string& module, const Entry& entry, bool exists) const {
  if (!exists && !is_hf_media(module))
    fail(ErrorCode::kRefused, "{} declares the width of {}, which is no module of the files", where_,
         shown(entry.path));
}

}  // namespace gem
