// One reply by itself: what the log is told of tool calls that had to be mended.
#include "server/service_work.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

#include "server/api_support.h"

namespace gem::server {
namespace {

// The lines of the log that a reply of these pieces (markers by their spelling) brings about, concluded.
std::string logged(const std::string& id, const std::vector<std::string>& pieces) {
  std::ostringstream out;
  const auto before = spdlog::default_logger();
  auto logger =
      std::make_shared<spdlog::logger>("gem", std::make_shared<spdlog::sinks::ostream_sink_mt>(out));
  logger->set_pattern("%l: %v");
  spdlog::set_default_logger(logger);
  const Tokenizer& tokenizer = testing::demo_session().tokenizer();
  GenerationJob job;
  job.id = id;
  job.reply.tools = std::make_shared<const ToolTypes>(parse_tools(parse_json(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"i":{"type":"integer"}}}}}])")));
  Work work(std::move(job), tokenizer, nullptr);
  work.take_slot(3);
  for (const std::string& piece : pieces) {
    if (const auto special = tokenizer.special_id(piece)) {
      work.on_token({.token = *special});
    } else {
      for (const std::int32_t token : tokenizer.encode(piece, false)) work.on_token({.token = token});
    }
  }
  work.on_finish(FinishReason::kStop);
  work.conclude(FinishReason::kStop, {});
  spdlog::set_default_logger(before);
  return out.str();
}

TEST(ReplyDiagnostics, OneWarningAReplyWithItsIdAndWithoutValues) {
  const std::vector<std::string> pieces = {"<|tool_call>", "call:f{i:secret,stray}", "<tool_call|>",
                                           "<|tool_call>", "call:other\n{}",         "<tool_call|>"};
  EXPECT_EQ(logged("chatcmpl-7", pieces),
            "warning: reply chatcmpl-7 in slot 3: odd tool calls: "
            "call 0, tool \"f\": argument \"i\": does not fit its declared type; "
            "call 0, tool \"f\": argument \"i\": a key without a value was dropped; "
            "call 1, tool \"other\": is not declared\n");
  EXPECT_EQ(logged("", {"<|tool_call>", "call:g{}", "<tool_call|>"}),
            "warning: reply in slot 3: odd tool calls: call 0, tool \"g\": is not declared\n");
}

TEST(ReplyDiagnostics, NothingIsSaidOfCallsAsTheyShouldBe) {
  EXPECT_EQ(logged("x", {"<|tool_call>", "call:f{i:1}", "<tool_call|>"}), "");
  EXPECT_EQ(logged("x", {"Hello"}), "");
}

// The names in it are the model's.
TEST(ReplyDiagnostics, TheLineIsOneAndNotLong) {
  std::vector<std::string> pieces;
  for (int i = 0; i < 11; ++i) {
    pieces.insert(pieces.end(), {"<|tool_call>", "call:a\nb{}", "<tool_call|>"});
  }
  const std::string line = logged("x", pieces);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  EXPECT_NE(line.find("tool \"a\\x0ab\""), std::string::npos) << line;
  EXPECT_TRUE(line.ends_with("; and 3 more\n")) << line;
  const std::vector<std::string> long_one = {std::string(199, 'x') + "\u00e9" + std::string(1000, 'y')};
  EXPECT_EQ(diagnostics_line(long_one), std::string(199, 'x') + "...") << "whole characters";
}

}  // namespace
}  // namespace gem::server
