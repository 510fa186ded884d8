// The service with the bundled model: conversations whose thoughts are not rendered again, thinking budgets,
// several replies of one request, calls.
#include <gtest/gtest.h>

#include <algorithm>

#include "service_support.h"
#include "text/chat_format.h"

namespace gem::server {
namespace {

using testing::Client;
using testing::Gate;

const std::string kDemo = std::string(GEM_SOURCE_DIR) + "/models/gem-demo.gguf";

class ServiceChat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    gate_ = std::make_unique<Gate>();
    session_ = testing::gated_session(kDemo, *gate_, 2, 2048, 64);
    gate_->open();
  }
  static void TearDownTestSuite() {
    session_.reset();
    gate_.reset();
  }
  void SetUp() override { service_ = std::make_unique<Service>(*session_, ServiceOptions{}); }

  GenerationJob job(const std::vector<Message>& messages, bool think,
                    const std::vector<Tool>& tools = {}) const {
    const RenderedPrompt prompt = render_chat(messages, tools, {.enable_thinking = think});
    std::vector<std::int32_t> ids = session_->tokenizer().encode_prompt(prompt.pieces);
    session_->tokenizer().ensure_bos(ids);
    GenerationJob j;
    SamplingParams sampling = session_->default_sampling();
    sampling.temperature = 0;
    j.request = session_->request(std::move(ids), sampling);
    j.reply = {.start_thinking = prompt.open_thought, .tools_active = !tools.empty()};
    j.token_details = true;
    return j;
  }
  Client submit(GenerationJob j) {
    std::vector<GenerationJob> jobs;
    jobs.push_back(std::move(j));
    return Client(std::move(service_->submit(std::move(jobs)).front()));
  }
  static Message message(const char* role, const std::string& text) {
    Message m;
    m.role = role;
    m.content.form = Content::Form::kText;
    m.content.text = text;
    return m;
  }
  std::int32_t id(const char* marker) const { return *session_->tokenizer().special_id(marker); }

  static inline std::unique_ptr<Gate> gate_;
  static inline std::unique_ptr<Session> session_;
  std::unique_ptr<Service> service_;
};

// Each turn's thought is stripped from the next turn's history. The state comes back to the last request's
// end, and the reply is that of a prompt read afresh.
TEST_F(ServiceChat, ThoughtsThatAreStrippedCostNoMoreThanTheReply) {
  for (const bool think : {true, false}) {
    std::vector<Message> messages;
    std::vector<std::int32_t> before;
    for (const char* question : {"What is 7 + 8?", "What is the capital of Italy?", "What is 3 + 4?"}) {
      messages.push_back(message("user", question));
      GenerationJob j = job(messages, think);
      const std::vector<std::int32_t> prompt = j.request.prompt;
      GenerationJob afresh = j;
      afresh.reuse_prompt = false;
      Client resumed = submit(std::move(j));
      const GenerationResult& result = resumed.finish();
      Client fresh = submit(std::move(afresh));
      EXPECT_EQ(fresh.finish().times.reused, 0u);
      EXPECT_EQ(resumed.tokens(), fresh.tokens());
      EXPECT_EQ(result.reason, FinishReason::kStop);
      EXPECT_EQ(result.reply, fresh.all().result->reply);
      EXPECT_EQ(result.reply.reasoning.empty(), !think);
      // What both prompts begin with, but for the empty thought that is only rendered at the end.
      const auto same = std::mismatch(before.begin(), before.end(), prompt.begin(), prompt.end());
      const auto common = static_cast<std::uint32_t>(same.first - before.begin());
      if (!before.empty()) {
        EXPECT_GE(common + 4, before.size()) << question;
        EXPECT_GE(result.times.reused, common) << question;
      }
      EXPECT_EQ(result.times.reused + result.times.prompt_tokens, prompt.size());
      before = prompt;
      messages.push_back(message("assistant", result.reply.content));
      service_->wait_idle(testing::kPatience);
    }
  }
}

TEST_F(ServiceChat, AThinkingBudgetClosesTheThought) {
  const std::vector<Message> messages = {message("user", "What is 7 + 8?")};
  Client free = submit(job(messages, true));
  const GenerationResult& whole = free.finish();
  EXPECT_FALSE(whole.reply.reasoning.empty());
  EXPECT_NE(whole.reply.content.find("15"), std::string::npos);
  EXPECT_GT(whole.reasoning_tokens, 6u);
  EXPECT_LT(whole.reasoning_tokens, whole.times.reply_tokens);
  for (const std::uint32_t budget : {0u, 3u}) {
    GenerationJob j = job(messages, true);
    j.thinking_budget = budget;
    Client client = submit(std::move(j));
    const GenerationResult& result = client.finish();
    EXPECT_LT(result.reply.reasoning.size(), whole.reply.reasoning.size());
    EXPECT_TRUE(whole.reply.reasoning.starts_with(result.reply.reasoning));
    EXPECT_EQ(result.reason, FinishReason::kStop) << "the reply goes on after the thought";
    const std::vector<std::int32_t> tokens = client.tokens();
    const auto opened = std::find(tokens.begin(), tokens.end(), id("<|channel>"));
    const auto closed = std::find(tokens.begin(), tokens.end(), id("<channel|>"));
    ASSERT_TRUE(opened != tokens.end() && closed != tokens.end());
    // Opening, "thought", newline, and the budget.
    EXPECT_EQ(closed - opened, 3 + static_cast<std::ptrdiff_t>(budget));
    EXPECT_EQ(result.reasoning_tokens, 4 + budget);
  }
}

TEST_F(ServiceChat, ARunningThoughtCanBeEnded) {
  Gate gate;
  const auto session = testing::gated_session(kDemo, gate, 1, 1024, 64);
  Service service(*session, {});
  std::vector<GenerationJob> jobs;
  jobs.push_back(job({message("user", "What is 7 + 8?")}, true));
  Client client(std::move(service.submit(std::move(jobs)).front()));
  EXPECT_FALSE(client.generation().end_thought()) << "it has not begun";
  gate.allow(8);
  client.take_until([](const GenerationUpdate& u) { return u.tokens.size() >= 6; });
  gate.round(9);
  const std::size_t drawn = service.status().slots.at(0).generated;
  EXPECT_TRUE(client.generation().end_thought());
  gate.open();
  const GenerationResult& result = client.finish();
  ASSERT_GT(client.tokens().size(), drawn);
  EXPECT_EQ(client.tokens()[drawn], id("<channel|>"));
  EXPECT_FALSE(result.reply.content.empty());
  EXPECT_FALSE(client.generation().end_thought());
}

TEST_F(ServiceChat, RepliesOfOneRequestAreThoseOfTheirSeeds) {
  GenerationJob base = job({message("user", "Tell me a story.")}, false);
  base.request.sampling.temperature = 1.5;
  base.request.max_tokens = 24;
  std::vector<GenerationJob> jobs;
  for (std::uint64_t i = 0; i < 3; ++i) {
    jobs.push_back(base);
    jobs.back().request.sampling.seed = 100 + i;
  }
  std::vector<GenerationJob> again = jobs;
  std::vector<std::vector<std::int32_t>> together;
  std::vector<Client> clients;
  for (auto& g : service_->submit(std::move(jobs))) clients.emplace_back(std::move(g));
  for (Client& c : clients) {
    c.finish();
    together.push_back(c.tokens());
  }
  for (std::size_t i = 0; i < again.size(); ++i) {
    Client c = submit(again[i]);
    c.finish();
    EXPECT_EQ(c.tokens(), together[i]) << i;
  }
  EXPECT_FALSE(together[0] == together[1] && together[1] == together[2]);
}

// Events and their joined text are the result; the tokens' bytes are the text as generated.
TEST_F(ServiceChat, EventsTokensAndResultAgree) {
  GenerationJob j = job({message("user", "What is 7 + 8?")}, true);
  j.stops = {"never to be found"};
  Client client = submit(std::move(j));
  const ParsedReply& reply = client.finish().reply;
  ParsedReply told;
  for (const ReplyEvent& e : client.all().events) {
    (e.kind == ReplyEvent::Kind::kReasoning ? told.reasoning : told.content) += e.text;
  }
  EXPECT_EQ(told.reasoning, reply.reasoning);
  EXPECT_EQ(told.content, reply.content);
  EXPECT_LE(client.all().events.size(), 2u) << "neighbours are joined";
  std::string bytes;
  for (const TokenDetail& t : client.all().tokens) bytes += t.bytes;
  EXPECT_EQ(bytes, session_->tokenizer().decode(client.tokens(), true));
  EXPECT_EQ(client.all().tokens.size(), client.all().result->times.reply_tokens);
}

TEST_F(ServiceChat, AStopStringEndsTheReplyAndIsTold) {
  GenerationJob j = job({message("user", "What is 7 + 8?")}, false);
  j.stops = {"zzz", "= 1"};
  Client client = submit(std::move(j));
  const GenerationResult& result = client.finish();
  EXPECT_EQ(result.reason, FinishReason::kStop);
  EXPECT_EQ(result.matched, "= 1");
  EXPECT_EQ(result.reply.content, "7 + 8 ");
}

}  // namespace
}  // namespace gem::server
