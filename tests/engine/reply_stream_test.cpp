// Replies from tokens: order of events, stop strings, thinking budgets, one call. The tokens are those of the
// bundled model's vocabulary; no model runs.
#include "engine/reply.h"

#include <gtest/gtest.h>

#include "formats/checkpoint.h"

namespace gem {
namespace {

class ReplyStreamTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ = std::make_unique<Tokenizer>(
        Tokenizer::from_checkpoint(open_checkpoint(std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf")));
  }
  static void TearDownTestSuite() { tokenizer_.reset(); }

  struct Told {
    std::vector<std::string> events;  // "content:…", neighbours joined
    std::uint32_t tokens = 0;         // taken before the reply ended
    std::vector<std::int32_t> forced;
    ParsedReply reply;
    std::string matched;
    std::uint32_t reasoning = 0;
  };

  // Feeds the tokens of a text with control tokens, as the engine would: a forced token takes the place of
  // the next one. `closer_too`: the forced closing of a thought makes the text's own one disappear.
  Told tell(const std::string& text, ReplyStreamOptions options) const {
    Told told;
    ReplyStream stream(*tokenizer_, std::move(options), [&](const ReplyEvent& e) {
      static const char* const kNames[] = {"thought:", "content:", "call:", "arguments:"};
      const std::string name = kNames[static_cast<int>(e.kind)];
      const bool joins = !told.events.empty() && told.events.back().starts_with(name) && name != "call:";
      if (joins) {
        told.events.back() += e.text;
      } else {
        told.events.push_back(name + e.text);
      }
    });
    for (const std::int32_t token : tokenizer_->encode(text, true)) {
      if (const auto forced = stream.forced_token()) {
        told.forced.push_back(*forced);
        ++told.tokens;
        stream.on_token({.token = *forced, .forced = true});
      }
      ++told.tokens;
      if (!stream.on_token({.token = token})) break;
    }
    stream.on_finish(FinishReason::kStop);
    told.reply = stream.reply();
    told.matched = stream.matched();
    told.reasoning = stream.reasoning_tokens();
    return told;
  }

  std::int32_t id(const char* marker) const { return *tokenizer_->special_id(marker); }
  std::size_t count(const std::string& text) const { return tokenizer_->encode(text, true).size(); }

  static inline std::unique_ptr<Tokenizer> tokenizer_;
};

using Events = std::vector<std::string>;

// Text that may begin a stop string waits; what follows it must not overtake it.
TEST_F(ReplyStreamTest, HeldTextComesBeforeTheCallThatFollows) {
  const Told told = tell("Let me STO<|tool_call>call:f{a:1}<tool_call|>", {.stops = {"STOP"}});
  EXPECT_EQ(told.events, (Events{"content:Let me STO", "call:f", "arguments:{\"a\":1}"}));
  EXPECT_EQ(told.reply.content, "Let me STO");
  EXPECT_EQ(told.matched, "");
}

TEST_F(ReplyStreamTest, HeldTextComesBeforeTheThoughtThatFollows) {
  const Told told = tell("One STO<|channel>thought\nhm<channel|>P two", {.stops = {"STOP"}});
  EXPECT_EQ(told.events, (Events{"content:One STO", "thought:hm", "content:P two"}));
  EXPECT_EQ(told.reply.content, "One STOP two") << "a thought between its halves makes it no stop string";
}

TEST_F(ReplyStreamTest, AStopStringEndsTheReplyAndIsNamed) {
  const Told told = tell("Hello there, this is the end of it", {.stops = {"zzz", "the end"}});
  EXPECT_EQ(told.reply.content, "Hello there, this is ");
  EXPECT_EQ(told.matched, "the end");
  EXPECT_LT(told.tokens, count("Hello there, this is the end of it"));
  const Told never = tell("Hello there", {.stops = {"there you"}});
  EXPECT_EQ(never.reply.content, "Hello there");
  EXPECT_EQ(never.matched, "");
}

TEST_F(ReplyStreamTest, StopStringsAreNotLookedForInThoughtsAndCalls) {
  const Told told =
      tell("<|channel>thought\nSTOP<channel|>yes<|tool_call>call:f{a:<|\"|>STOP<|\"|>}<tool_call|>",
           {.stops = {"STOP"}});
  EXPECT_EQ(told.reply.reasoning, "STOP");
  EXPECT_EQ(told.reply.tool_calls.at(0).arguments, "{\"a\":\"STOP\"}");
  EXPECT_EQ(told.matched, "");
}

TEST_F(ReplyStreamTest, PlainTextIsNotTakenApart) {
  const std::string text = "<|channel>thought\nhm<channel|>answer";
  const Told hidden = tell(text, {.parse = false});
  EXPECT_EQ(hidden.reply.content, "thought\nhmanswer");
  EXPECT_TRUE(hidden.reply.reasoning.empty());
  const Told shown = tell(text, {.parse = false, .render_special = true});
  EXPECT_EQ(shown.reply.content, text);
  const Told stopped = tell(text, {.parse = false, .stops = {"mans"}});
  EXPECT_EQ(stopped.reply.content, "thought\nh");
  EXPECT_EQ(stopped.matched, "mans");
}

TEST_F(ReplyStreamTest, AThoughtIsClosedWhenItsBudgetIsSpent) {
  const std::string thought = "first second third fourth fifth sixth";
  const std::size_t all = count(thought);
  ASSERT_GT(all, 5u);
  for (const std::uint32_t budget : {0u, 1u, 3u}) {
    const Told told = tell("<|channel>thought\n" + thought + "<channel|>answer", {.thinking_budget = budget});
    ASSERT_EQ(told.forced, std::vector<std::int32_t>{id("<channel|>")}) << budget;
    const std::vector<std::int32_t> ids = tokenizer_->encode(thought, true);
    std::string kept = tokenizer_->decode(std::span(ids).first(budget));
    EXPECT_EQ(told.reply.reasoning, kept) << budget;
    EXPECT_TRUE(told.reply.content.ends_with("answer"));
    EXPECT_EQ(told.reasoning, count("<|channel>thought\n") + budget + 1);
  }
  // A thought that is shorter ends by itself, at its budget too.
  for (const std::size_t budget : {all, all + 1}) {
    const Told told = tell("<|channel>thought\n" + thought + "<channel|>answer",
                           {.thinking_budget = static_cast<std::uint32_t>(budget + 1)});
    EXPECT_TRUE(told.forced.empty());
    EXPECT_EQ(told.reply.reasoning, thought);
  }
}

TEST_F(ReplyStreamTest, AThoughtThatThePromptOpenedHasTheSameBudget) {
  const std::string thought = "first second third fourth fifth sixth";
  const Told told = tell(thought, {.reply = {.start_thinking = true}, .thinking_budget = 2});
  EXPECT_EQ(told.forced.size(), 1u);
  EXPECT_EQ(told.reasoning, 3u);
}

// reasoning_format none: the thought stays in the content, its budget holds all the same.
TEST_F(ReplyStreamTest, AThoughtLeftInTheContentHasABudget) {
  const Told told = tell("<|channel>thought\none two three four five six<channel|>answer",
                         {.reply = {.extract_reasoning = false}, .thinking_budget = 2});
  EXPECT_EQ(told.forced.size(), 1u);
  EXPECT_TRUE(told.reply.reasoning.empty());
}

TEST_F(ReplyStreamTest, AThoughtEndsWhenAskedTo) {
  ReplyStream stream(*tokenizer_, {}, {});
  EXPECT_FALSE(stream.end_thought()) << "none is open";
  for (const std::int32_t token : tokenizer_->encode("<|channel>thought\nwell", true)) {
    EXPECT_FALSE(stream.forced_token());
    stream.on_token({.token = token});
  }
  EXPECT_TRUE(stream.end_thought());
  ASSERT_EQ(stream.forced_token(), id("<channel|>"));
  stream.on_token({.token = id("<channel|>"), .forced = true});
  EXPECT_FALSE(stream.forced_token());
  EXPECT_FALSE(stream.end_thought());
  // The next thought is not closed for the last one's sake.
  stream.on_token({.token = id("<|channel>")});
  EXPECT_FALSE(stream.forced_token());
}

TEST_F(ReplyStreamTest, OneCallEndsTheReply) {
  const std::string first = "<|tool_call>call:f{a:1}<tool_call|>";
  const std::string second = "<|tool_call>call:g{}<tool_call|>";
  const Told both = tell(first + second, {});
  EXPECT_EQ(both.reply.tool_calls.size(), 2u);
  const Told one = tell(first + second, {.one_call = true});
  EXPECT_EQ(one.tokens, count(first));
  EXPECT_EQ(one.reply.tool_calls, (std::vector<ReplyCall>{{"f", "{\"a\":1}"}}));
  EXPECT_EQ(one.reply.finish_reason, "tool_calls");
  // Without its closing marker the call ends where the next one begins, of which nothing is left.
  const Told open = tell("<|tool_call>call:f{a:1}" + second, {.one_call = true});
  EXPECT_EQ(open.reply.tool_calls, (std::vector<ReplyCall>{{"f", "{\"a\":1}"}}));
  EXPECT_EQ(open.reply.content, "");
}

}  // namespace
}  // namespace gem
