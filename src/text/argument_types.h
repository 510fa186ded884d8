// What a tool's schema says of the types of its arguments: enough to tell the text "5" from the number 5.
//
// Read from the parameters' JSON schema: type (a name or a list), nullable, enum and const, properties,
// items, additionalProperties, local $ref, anyOf/oneOf (any of them) and allOf (all of them). Whatever else a
// schema says, and whatever cannot be read, allows any type: a schema never costs an argument.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_message.h"

namespace gem {

struct ArgumentProperty;

struct ArgumentType {
  // Sets of JSON types. A number may be an integer too.
  static constexpr std::uint8_t kString = 1, kNumber = 2, kInteger = 4, kBoolean = 8, kNull = 16, kArray = 32,
                                kObject = 64, kAny = 127;
  std::uint8_t accepts = kAny;
  std::vector<ArgumentProperty> properties;
  std::vector<ArgumentType> items;       // of an array's elements: one, or none where they may be anything
  std::vector<ArgumentType> additional;  // of undeclared members: likewise

  bool takes(std::uint8_t any_of) const { return (accepts & any_of) != 0; }
  // The type of a member or of an element; null where it may be anything.
  const ArgumentType* property(std::string_view key) const;
  const ArgumentType* item() const { return items.empty() ? nullptr : items.data(); }
  bool declares(std::string_view key) const;
};

struct ArgumentProperty {
  std::string name;
  ArgumentType type;
};

ArgumentType read_argument_type(const JsonValue& schema);

// The argument types of the declared tools.
class ToolTypes {
 public:
  explicit ToolTypes(std::span<const Tool> tools);
  // The type of the arguments object, or null for a tool that was not declared.
  const ArgumentType* find(std::string_view tool) const;

 private:
  std::vector<ArgumentProperty> tools_;
};

}  // namespace gem
