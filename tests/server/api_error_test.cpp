#include "server/api/api_error.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace gem::server {
namespace {

TEST(ApiError, OpenAiShapeNamesTheFieldAndCarriesTheStatus) {
  const auto body = nlohmann::json::parse(
      error_body(ApiError::bad_field("top_p", "Field 'top_p': 0 to 1"), ErrorShape::kOpenAi));
  EXPECT_EQ(body["error"]["code"], 400);
  EXPECT_EQ(body["error"]["param"], "top_p");
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["error"]["message"], "Field 'top_p': 0 to 1");
}

TEST(ApiError, OverflowKeepsTheWordsThatClientsLookFor) {
  const ApiError e = ApiError::context_exceeded(9000, 8192);
  const auto body = nlohmann::json::parse(error_body(e, ErrorShape::kOpenAi));
  EXPECT_EQ(body["error"]["type"], "exceed_context_size_error");
  EXPECT_EQ(body["error"]["n_prompt_tokens"], 9000);
  EXPECT_EQ(body["error"]["n_ctx"], 8192);
  EXPECT_NE(e.message.find("exceeds the available context size"), std::string::npos);
  const auto anthropic = nlohmann::json::parse(error_body(e, ErrorShape::kAnthropic));
  EXPECT_EQ(anthropic["type"], "error");
  EXPECT_EQ(anthropic["error"]["message"].get<std::string>().find("prompt is too long"), 0u);
}

TEST(ApiError, AQueueThatIsFullSaysWhenToComeBack) {
  const HttpResponse response = error_response(ApiError::queue_full(7), ErrorShape::kAnthropic);
  EXPECT_EQ(response.status, 429);
  ASSERT_EQ(response.headers.size(), 1u);
  EXPECT_EQ(response.headers[0], (std::pair<std::string, std::string>("Retry-After", "7")));
}

TEST(ApiError, TheCallersFaultIs400AndOurs500) {
  EXPECT_EQ(ApiError::from(Error(ErrorCode::kUsage, "x")).status, 400);
  EXPECT_EQ(ApiError::from(Error(ErrorCode::kFailed, "x")).status, 500);
}

}  // namespace
}  // namespace gem::server
