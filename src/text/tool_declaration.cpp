#include "text/tool_declaration.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/python_text.h"
#include "text/schema_refs.h"

namespace gem {
namespace {

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return out;
}

// Truth as the template tests it: neither null, false, zero-length nor empty.
bool truthy(const JsonValue* value) {
  if (value == nullptr) return false;
  switch (value->kind) {
    case JsonValue::Kind::kNull:
      return false;
    case JsonValue::Kind::kBoolean:
      return value->boolean;
    case JsonValue::Kind::kNumber:
      return value->text.find_first_of("123456789") != std::string::npos;
    case JsonValue::Kind::kString:
      return !value->text.empty();
    case JsonValue::Kind::kArray:
      return !value->items.empty();
    case JsonValue::Kind::kObject:
      return !value->members.empty();
  }
  return false;
}

class Declaration {
 public:
  Declaration(PromptBuilder& out, const Tool& tool) : out_(out), tool_(tool) {}

  void render() {
    out_.special("<|tool>");
    out_.text("declaration:" + tool_.name + "{description:");
    out_.quoted(tool_.description);
    if (!tool_.parameters.members.empty()) parameters(resolve_refs(tool_.parameters, tool_.name));
    if (tool_.response) response(*tool_.response);
    out_.text("}");
    out_.special("<tool|>");
  }

 private:
  void parameters(const JsonValue& schema) {
    const std::string path = "parameters";
    out_.text(",parameters:{");
    if (const JsonValue* all = schema.find("properties"); truthy(all)) {
      if (!all->is_object()) refuse(path + ".properties", "must be an object");
      out_.text("properties:{");
      properties(*all, path + ".properties", false, 1);
      out_.text("},");
    }
    if (const JsonValue* names = schema.find("required"); truthy(names)) {
      out_.text("required:");
      name_list(*names, path + ".required");
      out_.text(",");
    }
    closing_type(schema, path);
  }

  void response(const JsonValue& schema) {
    out_.text(",response:{");
    if (described(schema, "response")) out_.text(",");
    closing_type(schema, "response");
  }

  // A top-level schema always ends in its type; without one it describes an object.
  void closing_type(const JsonValue& schema, const std::string& path) {
    const std::string type = type_name(schema, path);
    out_.text("type:");
    out_.quoted(type.empty() ? "OBJECT" : type);
    out_.text("}");
  }

  // `own_keys`: the members of a schema without properties, shown as if they were properties.
  void properties(const JsonValue& map, const std::string& path, bool own_keys, std::size_t depth) {
    static constexpr std::array<std::string_view, 5> kStandard = {"description", "type", "properties",
                                                                  "required", "nullable"};
    if (depth > kMaxSchemaDepth) {
      refuse(path, fmt::format("nested deeper than {} schemas", kMaxSchemaDepth));
    }
    bool first = true;
    for (const JsonMember* member : dictsort(map)) {
      if (own_keys && std::find(kStandard.begin(), kStandard.end(), member->key) != kStandard.end()) continue;
      if (!std::exchange(first, false)) out_.text(",");
      out_.text(member->key);
      out_.text(":{");
      property(member->value, path + "." + member->key, depth);
      out_.text("}");
    }
  }

  void property(const JsonValue& schema, const std::string& path, std::size_t depth) {
    bool comma = described(schema, path);
    const auto next = [&](std::string_view text) {
      if (std::exchange(comma, true)) out_.text(",");
      out_.text(text);
    };
    const std::string type = type_name(schema, path);
    if (type == "STRING" && truthy(schema.find("enum"))) {
      next("enum:");
      out_.value(*schema.find("enum"), PromptBuilder::Keys::kQuoted);
    }
    if (const JsonValue* of = schema.find("items"); type == "ARRAY" && truthy(of) && of->is_object()) {
      next("items:{");
      items(*of, path + ".items", depth + 1);
      out_.text("}");
    }
    if (truthy(schema.find("nullable"))) next("nullable:true");
    if (type == "OBJECT") {
      next("properties:{");
      if (const JsonValue* all = schema.find("properties"); all != nullptr && all->is_object()) {
        properties(*all, path + ".properties", false, depth + 1);
      } else {
        properties(schema, path, true, depth + 1);
      }
      out_.text("}");
      if (const JsonValue* names = schema.find("required"); truthy(names)) {
        next("required:");
        name_list(*names, path + ".required");
      }
    }
    next("type:");
    out_.quoted(type);
  }

  void items(const JsonValue& schema, const std::string& path, std::size_t depth) {
    bool first = true;
    for (const JsonMember* member : dictsort(schema)) {
      const JsonValue& value = member->value;
      if (value.is_null()) continue;
      if (!std::exchange(first, false)) out_.text(",");
      out_.text(member->key);
      out_.text(":");
      if (member->key == "properties") {
        out_.text("{");
        if (value.is_object()) properties(value, path + ".properties", false, depth + 1);
        out_.text("}");
      } else if (member->key == "required") {
        name_list(value, path + ".required");
      } else if (member->key == "type") {
        items_type(value, path + ".type");
      } else {
        out_.value(value, PromptBuilder::Keys::kQuoted);
      }
    }
  }

  void items_type(const JsonValue& type, const std::string& path) {
    if (type.is_string()) return out_.quoted(upper(type.text));
    if (!type.is_array()) refuse(path, "must be a string or an array of strings");
    out_.text("[");
    for (std::size_t i = 0; i < type.items.size(); ++i) {
      if (!type.items[i].is_string()) refuse(path, "must be a string or an array of strings");
      if (i > 0) out_.text(",");
      out_.quoted(upper(type.items[i].text));
    }
    out_.text("]");
  }

  bool described(const JsonValue& schema, const std::string& path) {
    const JsonValue* description = schema.find("description");
    if (!truthy(description)) return false;
    if (!description->is_string()) refuse(path + ".description", "must be a string");
    out_.text("description:");
    out_.quoted(description->text);
    return true;
  }

  void name_list(const JsonValue& names, const std::string& path) {
    if (!names.is_array()) refuse(path, "must be an array of strings");
    out_.text("[");
    for (std::size_t i = 0; i < names.items.size(); ++i) {
      if (!names.items[i].is_string()) refuse(path, "must be an array of strings");
      if (i > 0) out_.text(",");
      out_.quoted(names.items[i].text);
    }
    out_.text("]");
  }

  // The type in capitals; a list of types as Python prints a list, e.g. ['STRING', 'NULL']; empty where there
  // is none.
  std::string type_name(const JsonValue& schema, const std::string& path) const {
    const JsonValue* type = schema.find("type");
    if (type == nullptr || type->is_null()) return {};
    if (type->is_string()) return upper(type->text);
    if (!type->is_array()) refuse(path + ".type", "must be a string or an array of strings");
    std::string list = "[";
    for (const JsonValue& item : type->items) {
      if (list.size() > 1) list += ", ";
      if (item.is_null()) {
        list += "NONE";
        continue;
      }
      if (!item.is_string() || item.text.find_first_of("'\\") != std::string::npos) {
        refuse(path + ".type", "must be a string or an array of type names");
      }
      list += "'" + upper(item.text) + "'";
    }
    return list + "]";
  }

  [[noreturn]] void refuse(const std::string& path, std::string_view message) const {
    fail(ErrorCode::kUsage, "tool \"{}\", {}: {}", tool_.name, path, message);
  }

  PromptBuilder& out_;
  const Tool& tool_;
};

}  // namespace

void render_declaration(PromptBuilder& out, const Tool& tool) {
  Declaration(out, tool).render();
}

}  // namespace gem
