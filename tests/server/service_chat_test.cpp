// The service with the bundled model: conversations whose thoughts are not rendered again, thinking budgets,
// several replies of one request, calls.
#include <fmt/format.h>
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

// An agent's loop of 30 turns, a call and its result each, beside another conversation in the same slot: what
// is read again is less than a twentieth of the prompts beyond what is new in each.
TEST(ServiceAgentLoop, ThirtyTurnsAreReadOnce) {
  Gate gate;
  const auto session = testing::gated_session(kDemo, gate, 1, 4096, 64, 256 << 20);
  gate.open();
  Service service(*session, ServiceOptions{});
  const auto ask = [&](const std::vector<Message>& messages, const std::vector<Tool>& tools) {
    const RenderedPrompt prompt = render_chat(messages, tools, {.enable_thinking = false});
    GenerationJob j;
    std::vector<std::int32_t> ids = session->tokenizer().encode_prompt(prompt.pieces);
    session->tokenizer().ensure_bos(ids);
    SamplingParams greedy;
    greedy.temperature = 0;
    j.request = session->request(std::move(ids), greedy);
    j.request.max_tokens = 40;
    j.reply = {.start_thinking = prompt.open_thought, .tools_active = !tools.empty()};
    std::vector<GenerationJob> jobs;
    jobs.push_back(std::move(j));
    Client client(std::move(service.submit(std::move(jobs)).front()));
    const StreamTimes times = client.finish().times;
    service.wait_idle(testing::kPatience);
    return times;
  };
  const auto said = [](const char* role, const std::string& text) {
    Message m;
    m.role = role;
    m.content.form = Content::Form::kText;
    m.content.text = text;
    return m;
  };
  Tool tool;
  tool.name = "read_file";
  tool.description = "Reads a part of a file";
  tool.parameters = parse_json(
      R"({"type":"object","properties":{"path":{"type":"string"},"line":{"type":"integer"}},"required":["path"]})");
  std::vector<Message> agent = {said("user", "Look through the files and tell me where the number is.")};
  std::vector<Message> other;
  std::uint32_t read = 0;   // prompt tokens evaluated, over all turns of the agent
  std::uint32_t fresh = 0;  // of these, those that no earlier request of it had
  std::uint32_t whole = 0;  // what reading every prompt anew would take
  std::uint32_t before = 0;
  for (int turn = 0; turn < 30; ++turn) {
    const StreamTimes times = ask(agent, {tool});
    const std::uint32_t prompt = times.reused + times.prompt_tokens;
    read += times.prompt_tokens;
    fresh += prompt - before;
    whole += prompt;
    before = prompt;
    Message call = said("assistant", "");
    call.tool_calls.push_back(
        {.id = {},
         .name = "read_file",
         .arguments = parse_json(fmt::format(R"({{"path":"f{}.txt","line":{}}})", turn, turn * 7))});
    agent.push_back(call);
    Message result =
        said("tool", fmt::format("line {}: nothing here but the words of turn {}", turn * 7, turn));
    result.name = "read_file";
    agent.push_back(result);
    if (turn % 5 == 4) {  // somebody else, in the same slot
      other.push_back(said("user", fmt::format("What is {} + {}?", turn, turn + 1)));
      ask(other, {});
      other.push_back(said("assistant", fmt::format("{}", 2 * turn + 1)));
    }
  }
  EXPECT_GT(whole, 20'000u);
  EXPECT_LT(read - fresh, (whole - fresh) / 20)
      << read << " read, " << fresh << " new, " << whole << " in all";
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
