#include "hub/selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "hub/names.h"

namespace gem::hub {
namespace {

enum class Kind { kMain, kAssistant, kProjector, kFolder };

struct Candidate {
  Kind kind = Kind::kMain;
  std::string name;                // the (first) file; of a folder its path, "" at the root
  std::string tag;                 // storage type by its name, lower case; empty: none known
  std::vector<std::string> files;  // of a folder its weights, which tell by their names what it is
  std::uint64_t bytes = 0;
  bool sized = true;
  unsigned parts = 1;  // of a split set

  std::string shown() const {
    return kind == Kind::kFolder && name.empty() ? "(the repository's root)" : name;
  }
};

// Storage types by which one file of several is preferred where the user named none: four bits with the usual
// mix first, then larger ones. Types that are not here are taken when they are named or alone.
constexpr std::array<std::string_view, 13> kPreferred = {"q4_k_m", "q4_0", "q4_k_s", "q4_1", "q5_k_m",
                                                         "q5_k_s", "q5_0", "q5_1",   "q6_k", "q8_0",
                                                         "bf16",   "f16",  "f32"};
// Assistants and projectors are small: precision first, in types that every reader knows.
constexpr std::array<std::string_view, 4> kPreferredAssistant = {"q8_0", "bf16", "f16", "q4_0"};
constexpr std::array<std::string_view, 4> kPreferredProjector = {"bf16", "f16", "q8_0", "f32"};

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '_';
}

// The storage type that a lower-case name holds between other than letters, digits and '_' ("…-q4_0",
// "….bf16"); one that follows '_' counts where nothing else does ("gemma_q4_0").
std::string tag_of(std::string_view stem) {
  constexpr std::array<std::string_view, 12> kStarts = {"q1", "q2", "q3", "q4",   "q5",  "q6",
                                                        "q8", "iq", "tq", "bf16", "f16", "f32"};
  for (const char border : {'-', '_'}) {
    for (std::size_t at = 0; at < stem.size(); ++at) {
      const bool starts = at == 0 || !is_word(stem[at - 1]) || stem[at - 1] == border;
      if (!starts) continue;
      std::size_t end = at;
      while (end < stem.size() && is_word(stem[end])) ++end;
      const std::string_view word = stem.substr(at, end - at);
      if (std::ranges::any_of(kStarts, [&](std::string_view s) { return word.starts_with(s); }))
        return std::string(word);
    }
  }
  return {};
}

std::vector<std::string> words_of(std::string_view lower) {
  std::vector<std::string> words(1);
  for (const char c : lower) {
    if (is_word(c) && c != '_') {
      words.back().push_back(c);
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

// "12b", "31b", "e4b": the size that a name tells; empty: none.
std::string size_of(std::string_view lower) {
  for (const std::string& word : words_of(lower)) {
    std::string_view digits = word;
    if (digits.starts_with('e')) digits.remove_prefix(1);
    if (digits.size() < 2 || digits.back() != 'b') continue;
    digits.remove_suffix(1);
    if (std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return word;
  }
  return {};
}

Kind kind_of(std::string_view path) {
  if (lower_case(file_name(path)).find("mmproj") != std::string::npos) return Kind::kProjector;
  for (const std::string& word : words_of(lower_case(path)))
    if (word == "mtp" || word == "assistant" || word == "draft" || word == "drafter") return Kind::kAssistant;
  return Kind::kMain;
}

// STEM-00001-of-00003.gguf
struct SplitName {
  std::string stem;
  unsigned part = 0, parts = 0;
};

std::optional<SplitName> split_name(std::string_view path) {
  constexpr std::string_view kEnd = ".gguf", kOf = "-of-";
  constexpr std::size_t kTail = 1 + 5 + kOf.size() + 5;
  if (!lower_case(path).ends_with(kEnd)) return std::nullopt;
  path.remove_suffix(kEnd.size());
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, kOf.size()) != kOf) return std::nullopt;
  SplitName name{std::string(path.substr(0, path.size() - kTail)), 0, 0};
  const auto read = [](std::string_view digits, unsigned& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  if (!read(tail.substr(1, 5), name.part) || !read(tail.substr(10, 5), name.parts)) return std::nullopt;
  return name;
}

void add(Candidate& c, const ListedFile& file) {
  c.files.push_back(file.path);
  c.sized = c.sized && file.size.has_value();
  c.bytes += file.size.value_or(0);
}

std::vector<Candidate> gguf_candidates(const std::vector<ListedFile>& files) {
  std::map<std::string, Candidate> found;  // by stem, so that the parts of a set come together
  for (const ListedFile& file : files) {
    const std::string lower = lower_case(file.path);
    if (!lower.ends_with(".gguf") || lower.find("imatrix") != std::string::npos) continue;
    const auto split = split_name(file.path);
    const std::string stem = split ? fmt::format("{}-of-{}", split->stem, split->parts) : file.path;
    Candidate& c = found[stem];
    if (c.files.empty()) {
      c.kind = kind_of(file.path);
      c.parts = split ? split->parts : 1;
      const std::string shown =
          lower_case(file_name(split ? split->stem : file.path.substr(0, file.path.size() - 5)));
      c.tag = tag_of(shown);
    }
    add(c, file);
  }
  std::vector<Candidate> all;
  for (auto& [stem, c] : found) {
    std::ranges::sort(c.files);  // by part: the numbers have five digits
    c.name = c.files.front();
    all.push_back(std::move(c));
  }
  return all;
}

std::vector<Candidate> folder_candidates(const std::vector<ListedFile>& files) {
  std::map<std::string, Candidate> found;
  std::set<std::string> configured;
  for (const ListedFile& file : files) {
    const std::string folder(folder_name(file.path));
    if (file_name(file.path) == "config.json") configured.insert(folder);
    if (!file.path.ends_with(".safetensors")) continue;
    Candidate& c = found[folder];
    c.kind = Kind::kFolder;
    c.name = folder;
    add(c, file);
  }
  std::vector<Candidate> all;
  for (auto& [folder, c] : found)
    if (configured.contains(folder)) all.push_back(std::move(c));
  return all;
}

std::vector<Candidate> candidates_of(const std::vector<ListedFile>& files) {
  std::vector<Candidate> all = gguf_candidates(files);
  for (Candidate& c : folder_candidates(files)) all.push_back(std::move(c));
  return all;
}

std::string describe(const Candidate& c) {
  std::string text = c.shown();
  if (c.sized) text += fmt::format(", {:.2f} GB", static_cast<double>(c.bytes) / 1e9);
  if (c.files.size() > 1) text += fmt::format(" in {} files", c.files.size());
  if (c.kind == Kind::kAssistant) text += " (assistant)";
  if (c.kind == Kind::kProjector) text += " (image projector)";
  if (c.kind == Kind::kFolder) text += " (safetensors)";
  return text;
}

std::string list_of(const std::vector<Candidate>& candidates) {
  constexpr std::size_t kMost = 40;
  std::string text;
  for (std::size_t i = 0; i < std::min(candidates.size(), kMost); ++i)
    text += "\n  " + describe(candidates[i]);
  if (candidates.size() > kMost) text += fmt::format("\n  and {} more", candidates.size() - kMost);
  return text;
}

template <std::size_t N>
std::size_t rank_in(const std::array<std::string_view, N>& order, const std::string& tag) {
  return static_cast<std::size_t>(std::ranges::find(order, tag) - order.begin());
}

bool is_glob(const std::string& pattern) {
  return pattern.find_first_of("*?[") != std::string::npos;
}

// How closely a pattern means a candidate: 0 exactly a file, 1 its storage type, 2 loosely; nothing: not at
// all.
std::optional<int> match(const Candidate& c, const std::string& pattern) {
  const std::string wanted = lower_case(pattern);
  std::optional<int> best;
  const auto found = [&](int how) { best = std::min(best.value_or(how), how); };
  if (c.kind == Kind::kFolder) {
    if (wanted == "safetensors" || wanted == lower_case(c.name)) found(0);
    if (!c.name.empty() && lower_case(c.name).find(wanted) != std::string::npos) found(2);
  } else if (wanted == c.tag) {
    found(1);
  }
  for (const std::string& file : c.files) {
    const std::string path = lower_case(file);
    const std::string name(file_name(path));
    if (path == wanted || name == wanted || name == wanted + ".gguf") found(0);
    if (is_glob(wanted)) {
      if (::fnmatch(wanted.c_str(), path.c_str(), 0) == 0 || ::fnmatch(wanted.c_str(), name.c_str(), 0) == 0)
        found(2);
    } else if (path.find(wanted) != std::string::npos) {
      found(2);
    }
  }
  return best;
}

std::vector<Candidate> matching(const std::vector<Candidate>& all, const std::string& pattern) {
  if (pattern.empty()) return all;
  std::vector<Candidate> best;
  int closest = 3;
  for (const Candidate& c : all) {
    const auto how = match(c, pattern);
    if (!how || *how > closest) continue;
    if (*how < closest) best.clear();
    closest = *how;
    best.push_back(c);
  }
  return best;
}

std::vector<Candidate> of_kind(const std::vector<Candidate>& all, Kind kind) {
  std::vector<Candidate> some;
  std::ranges::copy_if(all, std::back_inserter(some), [&](const Candidate& c) { return c.kind == kind; });
  return some;
}

[[noreturn]] void ambiguous(const std::vector<Candidate>& candidates, const SelectionOptions& o) {
  fail(ErrorCode::kUsage, "{} holds several models{}: name one as {}:NAME{}", o.repository,
       o.pattern.empty() ? "" : fmt::format(" that {:?} means", printable(o.pattern)), o.repository,
       list_of(candidates));
}

Candidate best_of(const std::vector<Candidate>& candidates, const SelectionOptions& o) {
  if (candidates.size() == 1) return candidates.front();
  // A model trained for four bits of this kind is better in it than in any other.
  const bool trained = lower_case(o.repository).find("qat") != std::string::npos;
  const auto rank = [&](const Candidate& c) -> std::size_t {
    if (c.kind == Kind::kFolder) return c.name.empty() ? 0 : 1;
    if (c.tag == "q4_0" && (trained || lower_case(c.name).find("qat") != std::string::npos)) return 0;
    return 1 + rank_in(kPreferred, c.tag);
  };
  const Candidate* best = &candidates.front();
  for (const Candidate& c : candidates)
    if (rank(c) < rank(*best)) best = &c;
  const auto as_good =
      std::ranges::count_if(candidates, [&](const Candidate& c) { return rank(c) == rank(*best); });
  if (as_good > 1) ambiguous(candidates, o);
  return *best;
}

Candidate choose(const std::vector<Candidate>& all, const SelectionOptions& o) {
  const std::vector<Candidate> meant = matching(all, o.pattern);
  if (meant.empty() && !all.empty())
    fail(ErrorCode::kUsage, "{} holds no model that {:?} means; it holds{}", o.repository,
         printable(o.pattern), list_of(all));
  if (meant.empty())
    fail(ErrorCode::kUsage, "{} holds no model: no GGUF file, and no config.json beside safetensors",
         o.repository);
  for (const Kind kind : {Kind::kMain, Kind::kFolder})
    if (const auto some = of_kind(meant, kind); !some.empty()) return best_of(some, o);
  // What is only an accompaniment is got when it is named.
  if (o.pattern.empty())
    fail(ErrorCode::kUsage,
         "{} holds no main model, only what goes beside one; name it as {}:NAME to get it by itself{}",
         o.repository, o.repository, list_of(meant));
  return best_of(meant, o);
}

// The files are sorted by their part.
void require_parts(const Candidate& c) {
  if (c.files.size() == 1 && !split_name(c.name)) return;
  for (std::size_t i = 0; i < c.files.size(); ++i) {
    const auto name = split_name(c.files[i]);
    if (!name || name->part != i + 1)
      fail(ErrorCode::kFailed, "part {} of {} of the split model {} is not there", i + 1, c.parts, c.name);
  }
  if (c.files.size() < c.parts)
    fail(ErrorCode::kFailed, "part {} of {} of the split model {} is not there", c.files.size() + 1, c.parts,
         c.name);
  if (c.files.size() > c.parts)
    fail(ErrorCode::kFailed, "the split model {} has {} files for {} parts", c.name, c.files.size(), c.parts);
}

// The one that goes beside `main`; empty: none. A name made of the main model's comes first, then the same
// storage type, then the order of preference.
template <std::size_t N>
std::string beside(const Candidate& main, const std::vector<Candidate>& all, Kind kind,
                   const std::array<std::string_view, N>& order) {
  const std::string size = size_of(lower_case(main.name));
  const std::string expected = "mtp-" + lower_case(file_name(main.name));
  const Candidate* best = nullptr;
  const auto key = [&](const Candidate& c) {
    return std::tuple(lower_case(file_name(c.name)) != expected,
                      kind == Kind::kAssistant && c.tag != main.tag, rank_in(order, c.tag), c.name.size());
  };
  for (const Candidate& c : all) {
    if (c.kind != kind || c.parts != 1) continue;
    const std::string other = size_of(lower_case(c.name));
    if (!size.empty() && !other.empty() && size != other) continue;
    if (best == nullptr || key(c) < key(*best)) best = &c;
  }
  return best == nullptr ? std::string() : best->name;
}

// What a folder's readers look at besides the weights; files that run code or are other formats of the same
// are not among them.
constexpr std::array<std::string_view, 11> kFolderFiles = {
    "config.json",        "generation_config.json",   "tokenizer.json",       "tokenizer_config.json",
    "tokenizer.model",    "special_tokens_map.json",  "added_tokens.json",    "chat_template.jinja",
    "chat_template.json", "preprocessor_config.json", "processor_config.json"};

std::vector<std::string> folder_files(const Candidate& c, const std::vector<ListedFile>& files,
                                      const SmallFile& read) {
  std::set<std::string> there;
  for (const ListedFile& file : files) there.insert(file.path);
  std::vector<std::string> all;
  for (const std::string_view name : kFolderFiles)
    if (const std::string path = join_path(c.name, name); there.contains(path)) all.push_back(path);
  const std::string index = join_path(c.name, "model.safetensors.index.json");
  const std::string single = join_path(c.name, "model.safetensors");
  if (there.contains(index)) {
    all.push_back(index);
    for (const std::string& shard : parse_shard_index(read(index))) {
      const std::string path = join_path(c.name, shard);
      if (!there.contains(path))
        fail(ErrorCode::kFailed, "{} names the shard {}, which is not there", index, printable(shard));
      all.push_back(path);
    }
  } else if (there.contains(single)) {
    all.push_back(single);
  } else {
    all.insert(all.end(), c.files.begin(), c.files.end());
  }
  return all;
}

}  // namespace

Selection select_files(const std::vector<ListedFile>& files, const SelectionOptions& o,
                       const SmallFile& read) {
  const std::vector<Candidate> all = candidates_of(files);
  const Candidate main = choose(all, o);
  Selection s;
  s.main = main.name;
  s.folder = main.kind == Kind::kFolder;
  if (s.folder) {
    s.files = folder_files(main, files, read);
    return s;
  }
  require_parts(main);
  s.files = main.files;
  if (main.kind != Kind::kMain) return s;
  if (o.assistant) s.assistant = beside(main, all, Kind::kAssistant, kPreferredAssistant);
  if (o.mmproj) s.mmproj = beside(main, all, Kind::kProjector, kPreferredProjector);
  return s;
}

std::vector<std::string> describe_models(const std::vector<ListedFile>& files) {
  std::vector<std::string> lines;
  for (const Candidate& c : candidates_of(files)) lines.push_back(describe(c));
  return lines;
}

std::vector<std::string> parse_shard_index(const std::string& text) {
  using nlohmann::json;
  constexpr int kDeepest = 8;
  constexpr std::size_t kMostShards = 10'000;
  const auto refuse = [](const std::string& finding) {
    fail(ErrorCode::kFailed, "model.safetensors.index.json: {}", finding);
  };
  json root;
  try {
    root = json::parse(text, [&](int depth, json::parse_event_t, json&) {
      if (depth > kDeepest) refuse("nested too deep");
      return true;
    });
  } catch (const json::exception&) {
    refuse("not JSON");
  }
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (!root.is_object() || map == root.end() || !map->is_object() || map->empty())
    refuse("there is no weight_map");
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) refuse(fmt::format("the shard of {:?} is not a name", printable(tensor)));
    const auto& name = shard.get_ref<const std::string&>();
    if (!is_safe_path(name) || name.find('/') != std::string::npos || !name.ends_with(".safetensors"))
      refuse(fmt::format("{:?} is not the name of a shard beside it", printable(name)));
    shards.insert(name);
    if (shards.size() > kMostShards) refuse("it names too many shards");
  }
  return {shards.begin(), shards.end()};
}

}  // namespace gem::hub
