#include "text/argument_types.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gem {
namespace {

using Set = std::uint8_t;

// Beyond these a schema allows anything; so does a part that contains itself.
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxNodes = 4096;

Set set_of_name(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (lower == "string") return ArgumentType::kString;
  if (lower == "number") return ArgumentType::kNumber | ArgumentType::kInteger;
  if (lower == "integer") return ArgumentType::kInteger;
  if (lower == "boolean") return ArgumentType::kBoolean;
  if (lower == "null") return ArgumentType::kNull;
  if (lower == "array") return ArgumentType::kArray;
  if (lower == "object") return ArgumentType::kObject;
  return ArgumentType::kAny;
}

Set set_of_value(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return ArgumentType::kNull;
    case JsonValue::Kind::kBoolean:
      return ArgumentType::kBoolean;
    case JsonValue::Kind::kNumber:
      return value.text.find_first_of(".eE") == std::string::npos
                 ? ArgumentType::kInteger
                 : Set{ArgumentType::kNumber | ArgumentType::kInteger};
    case JsonValue::Kind::kString:
      return ArgumentType::kString;
    case JsonValue::Kind::kArray:
      return ArgumentType::kArray;
    case JsonValue::Kind::kObject:
      return ArgumentType::kObject;
  }
  return ArgumentType::kAny;
}

// What either of two schemas allows. A part that only one of them describes is taken from it.
void merge(ArgumentType& type, ArgumentType other, bool either) {
  type.accepts = either ? Set(type.accepts | other.accepts) : Set(type.accepts & other.accepts);
  for (ArgumentProperty& property : other.properties) {
    const auto same = std::find_if(type.properties.begin(), type.properties.end(),
                                   [&](const ArgumentProperty& p) { return p.name == property.name; });
    if (same == type.properties.end()) {
      type.properties.push_back(std::move(property));
    } else {
      merge(same->type, std::move(property.type), either);
    }
  }
  const auto part = [either](std::vector<ArgumentType>& mine, std::vector<ArgumentType>& theirs) {
    if (mine.empty()) {
      mine = std::move(theirs);
    } else if (!theirs.empty()) {
      merge(mine.front(), std::move(theirs.front()), either);
    }
  };
  part(type.items, other.items);
  part(type.additional, other.additional);
}

class Reader {
 public:
  explicit Reader(const JsonValue& root) : root_(root) {}

  ArgumentType read(const JsonValue& schema, std::size_t depth = 0) {
    ArgumentType type;
    if (!schema.is_object() || depth > kMaxDepth || ++nodes_ > kMaxNodes) return type;
    const JsonValue* properties = schema.find("properties");
    if (const JsonValue* name = schema.find("type")) type.accepts = types(*name);
    if (const JsonValue* values = schema.find("enum"); values != nullptr && values->is_array()) {
      Set set = 0;
      for (const JsonValue& value : values->items) set |= set_of_value(value);
      if (set != 0) type.accepts &= set;
    } else if (const JsonValue* value = schema.find("const")) {
      type.accepts &= set_of_value(*value);
    }
    if (properties != nullptr && properties->is_object()) {
      for (const JsonMember& member : properties->members) {
        type.properties.push_back({member.key, read(member.value, depth + 1)});
      }
    }
    if (const JsonValue* of = schema.find("items"); of != nullptr && of->is_object()) {
      type.items.push_back(read(*of, depth + 1));
    }
    if (const JsonValue* of = schema.find("additionalProperties"); of != nullptr && of->is_object()) {
      type.additional.push_back(read(*of, depth + 1));
    }
    for (const char* key : {"anyOf", "oneOf"}) alternatives(schema.find(key), type, depth);
    if (const JsonValue* all = schema.find("allOf"); all != nullptr && all->is_array()) {
      for (const JsonValue& item : all->items) merge(type, read(item, depth + 1), false);
    }
    if (const JsonValue* ref = schema.find("$ref"); ref != nullptr && ref->is_string()) {
      const JsonValue* target = follow(ref->text);
      if (target != nullptr && std::find(active_.begin(), active_.end(), target) == active_.end()) {
        active_.push_back(target);
        merge(type, read(*target, depth + 1), false);
        active_.pop_back();
      }
    }
    const JsonValue* nullable = schema.find("nullable");
    if (nullable != nullptr && nullable->boolean) type.accepts |= ArgumentType::kNull;
    if (type.accepts == 0) type.accepts = ArgumentType::kAny;  // contradictory
    return type;
  }

 private:
  static Set types(const JsonValue& name) {
    if (name.is_string()) return set_of_name(name.text);
    if (!name.is_array() || name.items.empty()) return ArgumentType::kAny;
    Set set = 0;
    for (const JsonValue& item : name.items) {
      set |= item.is_string() ? set_of_name(item.text) : item.is_null() ? ArgumentType::kNull : Set{0};
    }
    return set == 0 ? ArgumentType::kAny : set;
  }

  void alternatives(const JsonValue* list, ArgumentType& type, std::size_t depth) {
    if (list == nullptr || !list->is_array() || list->items.empty()) return;
    ArgumentType any = read(list->items.front(), depth + 1);
    for (std::size_t i = 1; i < list->items.size(); ++i) merge(any, read(list->items[i], depth + 1), true);
    merge(type, std::move(any), false);
  }

  // "#/a/b" (RFC 6901); null where it leads nowhere. (render_chat refuses such schemas where it shows them.)
  const JsonValue* follow(std::string_view ref) const {
    if (!ref.starts_with('#')) return nullptr;
    ref.remove_prefix(1);
    const JsonValue* at = &root_;
    while (!ref.empty() && at != nullptr) {
      if (ref.front() != '/') return nullptr;
      const std::size_t end = std::min(ref.find('/', 1), ref.size());
      std::string step;
      for (std::size_t i = 1; i < end; ++i) {
        const bool escaped = ref[i] == '~' && i + 1 < end;
        step += escaped ? (ref[++i] == '1' ? '/' : '~') : ref[i];
      }
      at = at->find(step);
      ref.remove_prefix(end);
    }
    return at;
  }

  const JsonValue& root_;
  std::vector<const JsonValue*> active_;  // what the references lead to that are being followed
  std::size_t nodes_ = 0;
};

}  // namespace

const ArgumentType* ArgumentType::property(std::string_view key) const {
  for (const ArgumentProperty& property : properties) {
    if (property.name == key) return &property.type;
  }
  return additional.empty() ? nullptr : additional.data();
}

bool ArgumentType::declares(std::string_view key) const {
  return std::any_of(properties.begin(), properties.end(),
                     [key](const ArgumentProperty& property) { return property.name == key; });
}

ArgumentType read_argument_type(const JsonValue& schema) {
  return Reader(schema).read(schema);
}

ToolTypes::ToolTypes(std::span<const Tool> tools) {
  for (const Tool& tool : tools) tools_.push_back({tool.name, read_argument_type(tool.parameters)});
}

const ArgumentType* ToolTypes::find(std::string_view tool) const {
  for (const ArgumentProperty& known : tools_) {
    if (known.name == tool) return &known.type;
  }
  return nullptr;
}

}  // namespace gem
