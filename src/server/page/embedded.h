// What the build makes of src/server/page/assets (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace gem::server {

struct EmbeddedFile {
  std::string_view name;  // "app.js"
  std::string_view tag;   // hexadecimal digits of the content's SHA-256
  std::string_view content;
};

std::span<const EmbeddedFile> embedded_files();  // sorted by name

}  // namespace gem::server
