#include "text/schema_refs.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace gem {
namespace {

constexpr std::size_t kMaxNodes = 100'000;
constexpr std::size_t kMaxActiveRefs = 64;

bool mentions_ref(const JsonValue& value) {
  return std::any_of(value.items.begin(), value.items.end(), mentions_ref) ||
         std::any_of(value.members.begin(), value.members.end(), [](const JsonMember& member) {
           return member.key == "$ref" || mentions_ref(member.value);
         });
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// One step of a JSON pointer in a URI fragment: %XX, then ~1 and ~0 (RFC 6901).
std::string pointer_step(std::string_view step) {
  std::string out;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '%' && i + 2 < step.size() && hex(step[i + 1]) >= 0 && hex(step[i + 2]) >= 0) {
      out += static_cast<char>(hex(step[i + 1]) * 16 + hex(step[i + 2]));
      i += 2;
    } else if (step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1')) {
      out += step[++i] == '0' ? '~' : '/';
    } else {
      out += step[i];
    }
  }
  return out;
}

class Resolver {
 public:
  Resolver(const JsonValue& root, const std::string& tool) : root_(root), tool_(tool) {}

  // A value that the declaration reads as a schema: its properties and items are schemas too.
  JsonValue schema(const JsonValue& value, const std::string& path, std::size_t depth) {
    check(path, depth);
    if (!value.is_object()) return value;
    const std::size_t entered = active_.size();
    JsonValue result = follow(value, path);
    for (JsonMember& member : result.members) {
      const std::string place = path + "." + member.key;
      if (member.key == "properties" && member.value.is_object()) {
        for (JsonMember& property : member.value.members) {
          property.value = schema(property.value, place + "." + property.key, depth + 1);
        }
      } else if (member.key == "items" && member.value.is_object()) {
        member.value = items(member.value, place, depth + 1);
      } else if (member.key == "additionalProperties" || member.key == "patternProperties") {
        member.value = schema(member.value, place, depth + 1);
      }
    }
    active_.resize(entered);
    return result;
  }

 private:
  // The schema of an array's elements: its properties are schemas, everything else is shown as it stands.
  JsonValue items(const JsonValue& value, const std::string& path, std::size_t depth) {
    check(path, depth);
    const std::size_t entered = active_.size();
    JsonValue result = follow(value, path);
    for (JsonMember& member : result.members) {
      const std::string place = path + "." + member.key;
      if (member.key == "properties" && member.value.is_object()) {
        for (JsonMember& property : member.value.members) {
          property.value = schema(property.value, place + "." + property.key, depth + 1);
        }
      } else if (!is_data(member.key)) {
        member.value = anywhere(member.value, place, depth + 1);
      }
    }
    active_.resize(entered);
    return result;
  }

  JsonValue anywhere(const JsonValue& value, const std::string& path, std::size_t depth) {
    check(path, depth);
    const std::size_t entered = active_.size();
    JsonValue result = value.is_object() ? follow(value, path) : value;
    for (JsonMember& member : result.members) {
      if (!is_data(member.key)) member.value = anywhere(member.value, path + "." + member.key, depth + 1);
    }
    for (std::size_t i = 0; i < result.items.size(); ++i) {
      result.items[i] = anywhere(result.items[i], fmt::format("{}[{}]", path, i), depth + 1);
    }
    active_.resize(entered);
    return result;
  }

  // Keywords whose value is data or a store of schemas, where "$ref" is no reference to be shown.
  static bool is_data(std::string_view key) {
    return key == "enum" || key == "const" || key == "default" || key == "examples" || key == "$defs" ||
           key == "definitions";
  }

  // `value` with its own "$ref" chain replaced; the references stay active until the caller is done below it.
  JsonValue follow(JsonValue value, const std::string& path) {
    for (;;) {
      const auto ref = std::find_if(value.members.begin(), value.members.end(),
                                    [](const JsonMember& member) { return member.key == "$ref"; });
      if (ref == value.members.end()) return value;
      if (!ref->value.is_string()) refuse(path, "\"$ref\" must be a string");
      const std::string pointer = ref->value.text;
      if (std::find(active_.begin(), active_.end(), pointer) != active_.end()) {
        refuse(path,
               fmt::format("\"$ref\" {} leads back to itself; the prompt format has no recursive schemas",
                           pointer));
      }
      if (active_.size() >= kMaxActiveRefs) refuse(path, "too many \"$ref\" inside one another");
      active_.push_back(pointer);
      value.members.erase(ref);
      const JsonValue& target = find(pointer, path);
      if (!target.is_object()) refuse(path, fmt::format("\"$ref\" {} does not lead to an object", pointer));
      nodes_ += count(target);
      check(path, 0);
      JsonValue merged = target;
      for (JsonMember& own : value.members) {
        const auto same = std::find_if(merged.members.begin(), merged.members.end(),
                                       [&](const JsonMember& member) { return member.key == own.key; });
        if (same != merged.members.end()) {
          same->value = std::move(own.value);
        } else {
          merged.members.push_back(std::move(own));
        }
      }
      value = std::move(merged);
    }
  }

  const JsonValue& find(std::string_view pointer, const std::string& path) const {
    if (!pointer.starts_with('#')) {
      refuse(path, fmt::format("\"$ref\" {} is not local (expected \"#/…\")", pointer));
    }
    std::string_view rest = pointer.substr(1);
    const JsonValue* at = &root_;
    while (!rest.empty()) {
      if (rest.front() != '/') refuse(path, fmt::format("\"$ref\" {} is no JSON pointer", pointer));
      rest.remove_prefix(1);
      const std::size_t end = std::min(rest.find('/'), rest.size());
      const std::string step = pointer_step(rest.substr(0, end));
      rest.remove_prefix(end);
      if (at->is_array()) {
        const bool number =
            !step.empty() && step.size() < 7 && step.find_first_not_of("0123456789") == step.npos;
        const std::size_t index = number ? std::stoul(step) : at->items.size();
        at = index < at->items.size() ? &at->items[index] : nullptr;
      } else {
        at = at->find(step);
      }
      if (at == nullptr) refuse(path, fmt::format("\"$ref\" {} leads nowhere", pointer));
    }
    return *at;
  }

  static std::size_t count(const JsonValue& value) {
    std::size_t nodes = 1;
    for (const JsonValue& item : value.items) nodes += count(item);
    for (const JsonMember& member : value.members) nodes += count(member.value);
    return nodes;
  }

  void check(const std::string& path, std::size_t depth) const {
    if (depth > kMaxJsonDepth) refuse(path, "schema nested too deeply");
    if (nodes_ > kMaxNodes) refuse(path, fmt::format("\"$ref\" expands to more than {} values", kMaxNodes));
  }

  [[noreturn]] void refuse(const std::string& path, std::string_view message) const {
    fail(ErrorCode::kUsage, "tool \"{}\", {}: {}", tool_, path, message);
  }

  const JsonValue& root_;
  const std::string& tool_;
  std::vector<std::string> active_;  // references that lead to the place being resolved
  std::size_t nodes_ = 0;            // values copied in for references
};

}  // namespace

JsonValue resolve_refs(const JsonValue& root, const std::string& tool) {
  if (!mentions_ref(root)) return root;
  return Resolver(root, tool).schema(root, "parameters", 0);
}

}  // namespace gem
