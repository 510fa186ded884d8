// The access log's lines and the JSON log.
#include "server/log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace gem::server {
namespace {

ExchangeRecord hostile() {
  return {.method = "GET",
          .path = "/a\nb\"c\\d\x7f\xff" + std::string(1000, 'x'),
          .peer = "127.0.0.1:5",
          .status = 404,
          .aborted = true,
          .bytes_in = 1,
          .bytes_out = 2,
          .seconds = 0.25};
}

TEST(Log, PathsCannotForgeLines) {
  const std::string line = access_line(hostile());
  EXPECT_TRUE(line.starts_with("127.0.0.1:5 \"GET /a%0Ab%22c%5Cd%7F%FFx")) << line;
  EXPECT_TRUE(line.ends_with("...\" 404 in 1 out 2 0.250 s client left")) << line;
  EXPECT_LT(line.size(), 350u);
}

TEST(Log, JsonLines) {
  std::ostringstream out;
  auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(out);
  sink->set_formatter(json_log_formatter());
  AccessLog(LogFormat::kJson, std::make_shared<spdlog::logger>("access", sink)).write(hostile());
  spdlog::logger("gem", sink).warn("a \"quoted\"\nline");
  std::istringstream lines(out.str());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto access = nlohmann::json::parse(line);
  EXPECT_EQ(access["level"], "info");
  EXPECT_EQ(access["event"], "request");
  EXPECT_EQ(access["status"], 404);
  EXPECT_EQ(access["aborted"], true);
  EXPECT_EQ(access["seconds"], 0.25);
  EXPECT_EQ(access["time"].get<std::string>().size(), std::string("2026-01-02T03:04:05.678Z").size());
  ASSERT_TRUE(std::getline(lines, line));
  const auto message = nlohmann::json::parse(line);
  EXPECT_EQ(message["level"], "warning");
  EXPECT_EQ(message["message"], "a \"quoted\"\nline");
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(Log, QuietLevelsAndBadOnes) {
  std::ostringstream out;
  auto logger =
      std::make_shared<spdlog::logger>("access", std::make_shared<spdlog::sinks::ostream_sink_mt>(out));
  logger->set_level(spdlog::level::warn);
  AccessLog(LogFormat::kText, logger).write(hostile());
  EXPECT_EQ(out.str(), "");
  EXPECT_THROW(set_up_log({.level = "loud"}), Error);
  EXPECT_THROW(set_up_log({.file = "/dev/null/log"}), Error);
}

}  // namespace
}  // namespace gem::server
