// Replaces the local references of a tool's schema, which the prompt format cannot express.
#pragma once

#include <string>

#include "text/json_value.h"

namespace gem {

// The schema with every {"$ref": "#/…"} replaced by what it points to in `root` (members beside "$ref" win),
// where the declaration shows schemas: properties, items, and what stands in for them. Throws Error(kUsage)
// naming the tool and the place: references that are not local, lead nowhere, form a cycle, or blow up beyond
// 100,000 values.
JsonValue resolve_refs(const JsonValue& root, const std::string& tool);

}  // namespace gem
