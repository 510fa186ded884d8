// The embedded files of the web page, as the router asks for them.
#include "server/page/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "server/page/embedded.h"

namespace gem::server {
namespace {

std::string header(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

TEST(Page, EmbedsEveryAssetByteForByte) {
  const std::filesystem::path folder = std::filesystem::path(GEM_SOURCE_DIR) / "src/server/page/assets";
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++count;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    const std::string name = entry.path().filename().string();
    const auto files = embedded_files();
    const auto found = std::ranges::find(files, name, &EmbeddedFile::name);
    ASSERT_NE(found, files.end()) << name;
    EXPECT_EQ(found->content, content) << name;
    EXPECT_EQ(found->tag.size(), 32U);
  }
  EXPECT_EQ(count, embedded_files().size());
  EXPECT_TRUE(std::ranges::is_sorted(embedded_files(), {}, &EmbeddedFile::name));
}

TEST(Page, ServesTheFilesAndNothingElse) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == "index.html") continue;
    const auto response = page_file("/page/" + std::string(file.name));
    ASSERT_TRUE(response) << file.name;
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, file.content);
    EXPECT_NE(response->content_type, "application/octet-stream") << file.name;
  }
  EXPECT_EQ(page_file("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(page_file("/index.html")->body, page_file("/")->body);
  EXPECT_EQ(page_file("/favicon.ico")->content_type, "image/svg+xml");
  for (const char* path : {"", "/page", "/page/", "/page/index.html", "/page/none.js", "/page/../page.cpp",
                           "page/app.js", "/page/app.js/", "/PAGE/app.js", "//"}) {
    EXPECT_FALSE(page_file(path)) << path;
    EXPECT_FALSE(is_page_file(path)) << path;
  }
}

TEST(Page, IsAskedForAgainButSentOnlyWhenItChanged) {
  const auto first = page_file("/");
  const std::string tag = header(*first, "ETag");
  ASSERT_EQ(tag.size(), 34U);
  EXPECT_EQ(header(*first, "Cache-Control"), "no-cache");
  for (const std::string& value : {tag, "W/" + tag, "\"x\", " + tag, std::string("*")}) {
    const auto again = page_file("/", value);
    EXPECT_EQ(again->status, 304) << value;
    EXPECT_EQ(again->body, "");
    EXPECT_EQ(header(*again, "ETag"), tag);
  }
  for (const std::string& value : {std::string("\"x\""), tag.substr(1, 32), std::string("\"\"")}) {
    EXPECT_EQ(page_file("/", value)->status, 200) << value;
  }
}

TEST(Page, LetsTheBrowserLoadNothingFromElsewhere) {
  const std::string policy = header(*page_file("/"), "Content-Security-Policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self';")) << policy;
  for (const char* loose : {"unsafe", "http", "*", "data:"})
    EXPECT_EQ(policy.find(loose), std::string::npos) << loose;
  EXPECT_EQ(header(*page_file("/page/app.js"), "X-Content-Type-Options"), "nosniff");
  // Nor do the files name any other place: only namespaces of XML.
  for (const EmbeddedFile& file : embedded_files()) {
    for (std::size_t at = 0; (at = file.content.find("http", at)) != std::string_view::npos; ++at) {
      const std::string_view address = file.content.substr(at, 60);
      const bool foreign = address.starts_with("http://") || address.starts_with("https://");
      const std::size_t name = address[4] == 's' ? 8 : 7;
      if (foreign && address.size() > name && std::isalnum(static_cast<unsigned char>(address[name]))) {
        EXPECT_TRUE(address.starts_with("http://www.w3.org/")) << file.name << ": " << address;
      }
    }
  }
}

}  // namespace
}  // namespace gem::server
