#include "server/api/json_echo.h"

namespace gem::server {

using nlohmann::ordered_json;

ordered_json echo(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return nullptr;
    case JsonValue::Kind::kBoolean:
      return value.boolean;
    case JsonValue::Kind::kNumber: {
      ordered_json number = ordered_json::parse(value.text, nullptr, false);
      return number.is_discarded() ? ordered_json(value.text) : number;
    }
    case JsonValue::Kind::kString:
      return value.text;
    case JsonValue::Kind::kArray: {
      ordered_json array = ordered_json::array();
      for (const JsonValue& item : value.items) array.push_back(echo(item));
      return array;
    }
    case JsonValue::Kind::kObject: {
      ordered_json object = ordered_json::object();
      // Keys are unique already, so the search for an equal one (linear in ordered_json) is left out.
      auto& members = object.get_ref<ordered_json::object_t&>();
      members.reserve(value.members.size());
      for (const JsonMember& member : value.members) {
        static_cast<std::vector<ordered_json::object_t::value_type>&>(members).emplace_back(
            member.key, echo(member.value));
      }
      return object;
    }
  }
  return nullptr;
}

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

HttpResponse json_response(const ordered_json& json) {
  HttpResponse response;
  response.body = dump(json);
  return response;
}

}  // namespace gem::server
