#include "hub/settings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/error.h"
#include "formats/temporary_folder.h"
#include "hub/http.h"
#include "hub/repository.h"

namespace gem::hub {
namespace {

Settings with(const std::map<std::string, std::string>& variables) {
  return settings_from([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

// The order that the Hugging Face tools document.
TEST(HubSettings, TheCacheIsWhereTheHuggingFaceToolsHaveIt) {
  std::map<std::string, std::string> v = {{"HOME", "/home/u"}};
  EXPECT_EQ(with(v).cache, "/home/u/.cache/huggingface/hub");
  v["XDG_CACHE_HOME"] = "/cache";
  EXPECT_EQ(with(v).cache, "/cache/huggingface/hub");
  v["HF_HOME"] = "~/hf";
  EXPECT_EQ(with(v).cache, "/home/u/hf/hub");
  v["HUGGINGFACE_HUB_CACHE"] = "/old";
  EXPECT_EQ(with(v).cache, "/old");
  v["HF_HUB_CACHE"] = "/new";
  EXPECT_EQ(with(v).cache, "/new");
  EXPECT_THROW(with({}), Error);
}

TEST(HubSettings, TheTokenComesFromTheEnvironmentOrTheLogin) {
  const testing::TemporaryFolder folder;
  std::map<std::string, std::string> v = {{"HOME", "/nowhere"}, {"HF_HOME", folder.file("")}};
  EXPECT_EQ(with(v).token, "");
  std::ofstream(folder.file("token")) << "hf_login\n";
  EXPECT_EQ(with(v).token, "hf_login");
  v["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1";
  EXPECT_EQ(with(v).token, "");
  v["HF_TOKEN"] = " hf_mine\n";
  EXPECT_EQ(with(v).token, "hf_mine");
  v["HF_TOKEN"] = "hf\r\nX-Evil: 1";
  EXPECT_THROW(with(v), Error);
}

TEST(HubSettings, EndpointAndOffline) {
  std::map<std::string, std::string> v = {{"HOME", "/home/u"}};
  EXPECT_EQ(with(v).endpoint, "https://huggingface.co");
  EXPECT_FALSE(with(v).offline);
  v["HF_ENDPOINT"] = "https://mirror.example/hub//";
  v["HF_HUB_OFFLINE"] = "Yes";
  EXPECT_EQ(with(v).endpoint, "https://mirror.example/hub");
  EXPECT_TRUE(with(v).offline);
  v["HF_HUB_OFFLINE"] = "0";
  EXPECT_FALSE(with(v).offline);
}

TEST(HubSettings, ATokenIsNotSentUnencryptedOverANetwork) {
  Settings s;
  s.token = "hf_secret";
  for (const char* endpoint :
       {"https://huggingface.co", "http://127.0.0.1:8000", "http://localhost", "http://[::1]:80"}) {
    s.endpoint = endpoint;
    EXPECT_EQ(token_for(s), "hf_secret") << endpoint;
  }
  for (const char* endpoint : {"http://huggingface.co", "http://127.0.0.1.evil.example", "http://10.0.0.1"}) {
    s.endpoint = endpoint;
    EXPECT_EQ(token_for(s), "") << endpoint;
  }
}

TEST(HubOrigin, IsSchemeHostAndPort) {
  EXPECT_EQ(origin_of("https://Huggingface.co/a"), origin_of("https://huggingface.co:443/b?c"));
  EXPECT_FALSE(origin_of("https://huggingface.co") == origin_of("http://huggingface.co"));
  EXPECT_FALSE(origin_of("https://huggingface.co") == origin_of("https://cdn.huggingface.co"));
  EXPECT_FALSE(origin_of("https://huggingface.co") == origin_of("https://huggingface.co:8443"));
  EXPECT_EQ(origin_of("https://huggingface.co:8443/").text(), "https://huggingface.co:8443");
  for (const char* url : {"", "huggingface", "ftp://huggingface.co", "file:///etc/passwd",
                          "https://u:p@huggingface.co", "https://u@huggingface.co", "https://"}) {
    try {
      origin_of(url);
      ADD_FAILURE() << url;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      EXPECT_EQ(std::string(e.what()).find("u:p"), std::string::npos);
    }
  }
}

TEST(HubOrigin, ARedirectDoesNotLeaveEncryption) {
  const Origin safe = origin_of("https://huggingface.co"), open = origin_of("http://cdn.example");
  EXPECT_EQ(refused_redirect(safe, open),
            "https://huggingface.co redirects to http://cdn.example, which is not encrypted");
  EXPECT_EQ(refused_redirect(safe, origin_of("https://cdn.example")), "");
  EXPECT_EQ(refused_redirect(open, safe), "");
  EXPECT_EQ(refused_redirect(open, open), "");
}

}  // namespace
}  // namespace gem::hub
