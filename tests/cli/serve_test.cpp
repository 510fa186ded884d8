// gem serve as its users meet it: the real program, a free port, the bundled model.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cli/process.h"

namespace gem::testing {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kQuestion =
    R"({"messages":[{"role":"user","content":"What is 25 + 17?"}],"temperature":0})";
// Ends in a few thousand tokens, or when the context is full.
constexpr const char* kLongStream =
    R"({"messages":[{"role":"user","content":"Hello"}],"stream":true,"ignore_eos":true,"temperature":0})";

class Server {
 public:
  explicit Server(std::vector<std::string> more = {}) : process_(arguments(std::move(more))) {
    EXPECT_TRUE(
        eventually([&] { return !process_.running() || process_.out().find('\n') != std::string::npos; }));
    const std::string out = process_.out();
    const std::string before = "http://127.0.0.1:";
    EXPECT_TRUE(out.starts_with(before)) << out << process_.err();
    if (out.starts_with(before)) port_ = static_cast<std::uint16_t>(std::atoi(out.c_str() + before.size()));
  }
  Process& process() { return process_; }
  std::uint16_t port() const { return port_; }
  HttpReply call(const std::string& method, const std::string& target, const std::string& body = "",
                 const std::string& headers = "") const {
    return Client(port_).call(method, target, body, headers);
  }
  std::size_t busy_slots() const {
    std::size_t busy = 0;
    for (const Json& slot : Json::parse(call("GET", "/slots").body))
      busy += slot["is_processing"].get<bool>() ? 1 : 0;
    return busy;
  }

 private:
  static std::vector<std::string> arguments(std::vector<std::string> more) {
    std::vector<std::string> all = {"serve", "--port", "0", "--no-think"};
    if (std::find(more.begin(), more.end(), "--threads") == more.end())
      all.insert(all.end(), {"--threads", "1"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Process process_;
  std::uint16_t port_ = 0;
};

std::string content_of(const HttpReply& reply) {
  return Json::parse(reply.body)["choices"][0]["message"]["content"];
}

// Twenty long replies for one slot, of which the first is being made: work for a long while.
std::vector<std::unique_ptr<Client>> long_work(std::uint16_t port) {
  std::vector<std::unique_ptr<Client>> streams;
  for (int i = 0; i < 20; ++i) {
    streams.push_back(std::make_unique<Client>(port));
    streams.back()->send("POST", "/v1/chat/completions", kLongStream);
    if (i == 0) {
      EXPECT_TRUE(streams[0]->read_until("\"content\":\""));
    }
  }
  return streams;
}

TEST(Serve, AnswersAChatAndStops) {
  Server server({"--alias", "the-model"});
  EXPECT_NE(server.process().out().find("serves the-model"), std::string::npos) << server.process().out();
  EXPECT_EQ(server.call("GET", "/health").body, R"({"status":"ok"})");
  EXPECT_EQ(server.call("GET", "/ready").status, 200);
  const HttpReply reply = server.call("POST", "/v1/chat/completions", kQuestion);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(content_of(reply).find("42"), std::string::npos) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["model"], "the-model");
  EXPECT_NE(server.call("GET", "/metrics").body.find("gem_requests_total{outcome=\"stop\"} 1\n"),
            std::string::npos);
  server.process().send(SIGTERM);
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
  // The log tells of the exchange, and not of what was said.
  const std::string log = server.process().err();
  EXPECT_NE(log.find("\"POST /v1/chat/completions\" 200"), std::string::npos) << log;
  EXPECT_EQ(log.find("What is"), std::string::npos) << log;
}

// What was read before the server was restarted need not be read again, and says the same.
TEST(Serve, KeepsPromptsOnDiskOverARestart) {
  const Folder folder;
  const std::string kept = (folder / "kept").string();
  Json body = Json::parse(kQuestion);
  std::string text = "Here are some numbers:";
  for (int i = 0; i < 60; ++i) text += " " + std::to_string(i * i);
  body["messages"][0]["content"] = text + ". What is 25 + 17?";
  body["messages"].push_back({{"role", "assistant"}, {"content", "42"}});
  body["messages"].push_back({{"role", "user"}, {"content", "What is 25 + 17?"}});
  std::string first;
  int prompt = 0;
  {
    Server server({"--cache-dir", kept});
    const HttpReply reply = server.call("POST", "/v1/chat/completions", body.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    first = content_of(reply);
    prompt = Json::parse(reply.body)["usage"]["prompt_tokens"];
    EXPECT_EQ(Json::parse(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    server.process().send(SIGTERM);
    EXPECT_EQ(server.process().wait(), 0) << server.process().err();
  }
  Server server({"--cache-dir", kept, "--cache-disk", "100"});
  const HttpReply reply = server.call("POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(content_of(reply), first);
  EXPECT_EQ(Json::parse(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1);
  const std::string metrics = server.call("GET", "/metrics").body;
  EXPECT_NE(metrics.find("gem_prompt_cache_disk_loaded_total 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("gem_prompt_cache_disk_budget_bytes 104857600\n"), std::string::npos);
  EXPECT_NE(server.process().err().find("kept prompts in " + kept), std::string::npos);
  // A folder is one server's.
  const Outcome second = gem_command("serve --port 0 --cache-dir " + kept);
  EXPECT_EQ(second.status, 2);
  EXPECT_NE(second.err.find("in use by another process"), std::string::npos) << second.err;
}

TEST(Serve, AFolderForPromptsThatCannotBeIsSaidAtTheStart) {
  const Folder folder;
  write_text(folder / "file", "x");
  const auto refused = [&](const std::string& arguments, const std::string& why) {
    const Outcome found = gem_command("serve --port 0 " + arguments);
    EXPECT_EQ(found.status, 2) << arguments;
    EXPECT_NE(found.err.find(why), std::string::npos) << found.err;
  };
  refused("--cache-dir " + (folder / "file").string(), "it is not a folder");
  refused("--cache-disk 100", "--cache-dir");
  refused("--cache-ram 0 --cache-dir " + (folder / "kept").string(), "in memory too");
}

// Processor time of a process so far, user and system, in clock ticks (10 ms).
long processor_ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 2));  // the name before may hold anything
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  long user = 0;
  long system = 0;
  fields >> user >> system;
  return user + system;
}

// The workers of the pool spin after a loop only for a moment; nothing polls.
TEST(Serve, AnIdleServerUsesNoProcessorTime) {
  Server server({"--threads", "4"});
  ASSERT_EQ(server.call("POST", "/v1/chat/completions", kQuestion).status, 200);
  EXPECT_GT(processor_ticks(server.process().pid()), 0);
  // The reply's threads may still be on their way to sleep at first.
  EXPECT_TRUE(eventually([&] {
    const long before = processor_ticks(server.process().pid());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return processor_ticks(server.process().pid()) - before <= 1;
  }));
}

TEST(Serve, InterruptStopsToo) {
  Server server;
  server.process().send(SIGINT);
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
}

TEST(Serve, AStreamSaysWhatThePlainReplySays) {
  Server server;
  const std::string plain = content_of(server.call("POST", "/v1/chat/completions", kQuestion));
  Json body = Json::parse(kQuestion);
  body["stream"] = true;
  const HttpReply reply = server.call("POST", "/v1/chat/completions", body.dump());
  EXPECT_NE(reply.head.find("text/event-stream"), std::string::npos);
  EXPECT_EQ(streamed_content(reply.body), plain);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n")) << reply.body;
}

TEST(Serve, OneConnectionOutlivesItsRefusals) {
  Server server({"--api-key", "one", "--api-key", "two"});
  Client client(server.port());
  const std::string key = "Authorization: Bearer two\r\n";
  const auto status = [&](const char* method, const char* path, const std::string& body,
                          const std::string& headers) {
    return client.call(method, path, body, headers).status;
  };
  EXPECT_EQ(status("GET", "/nothing", "", key), 404);
  EXPECT_EQ(status("DELETE", "/v1/models", "", key), 405);
  EXPECT_EQ(status("GET", "/v1/models", "", ""), 401);
  EXPECT_EQ(status("POST", "/v1/chat/completions", kQuestion, "X-Api-Key: three\r\n"), 401);
  EXPECT_EQ(status("GET", "/v1/models", "", key + "Origin: http://evil.example\r\n"), 403);
  EXPECT_EQ(status("GET", "/v1/models", "", key + "Host: evil.example\r\n"), 403);
  EXPECT_EQ(status("POST", "/v1/chat/completions", "{\"messages\":", key), 400);
  EXPECT_EQ(status("HEAD", "/v1/models", "", key), 200);
  EXPECT_EQ(status("OPTIONS", "/v1/models", "", ""), 200);
  EXPECT_EQ(status("GET", "/", "", ""), 200);
  const HttpReply reply = client.call("POST", "/v1/chat/completions", kQuestion, "X-Api-Key: one\r\n");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(content_of(reply).find("42"), std::string::npos);
}

TEST(Serve, KeysFromAFile) {
  const Folder folder;
  write_text(folder / "keys", "first\n\nsecond\n");
  Server server({"--api-key-file", (folder / "keys").string()});
  EXPECT_EQ(server.call("GET", "/v1/models").status, 401);
  EXPECT_EQ(server.call("GET", "/v1/models", "", "Authorization: Bearer second\r\n").status, 200);
  EXPECT_EQ(server.call("GET", "/health").status, 200);
  EXPECT_EQ(server.process().err().find("second"), std::string::npos);
}

TEST(Serve, AllowedPagesMayCall) {
  Server server({"--cors-origin", "https://app.example", "--api-prefix", "/gem"});
  const HttpReply reply = server.call("GET", "/gem/v1/models", "", "Origin: https://app.example\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(reply.head.find("Access-Control-Allow-Origin: https://app.example\r\n"), std::string::npos)
      << reply.head;
  EXPECT_EQ(server.call("GET", "/gem/v1/models", "", "Origin: https://other.example\r\n").status, 403);
  EXPECT_EQ(server.call("GET", "/v1/models").status, 404);
}

TEST(Serve, TermLetsARunningStreamEnd) {
  Server server;
  Client stream(server.port());
  Client late(server.port());
  Json body = Json::parse(kLongStream);
  body["max_tokens"] = 500;
  stream.send("POST", "/v1/chat/completions", body.dump());
  ASSERT_TRUE(stream.read_until("\"content\":\""));
  server.process().send(SIGTERM);
  // Who is connected already is told; the stream goes on to its end.
  ASSERT_TRUE(eventually([&] { return late.call("GET", "/ready").status != 200; }));
  const HttpReply reply = stream.receive();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n")) << reply.body.substr(reply.body.size() - 300);
  EXPECT_NE(reply.body.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
  EXPECT_FALSE(Client(server.port()).connected());
}

TEST(Serve, ASecondSignalStopsAtOnce) {
  Server server({"--parallel", "1", "--queue", "100", "--drain-timeout", "600"});
  const auto streams = long_work(server.port());
  server.process().send(SIGTERM);
  EXPECT_TRUE(eventually([&] { return server.process().err().find("finishing") != std::string::npos; }));
  EXPECT_TRUE(server.process().running());
  server.process().send(SIGTERM);
  EXPECT_EQ(server.process().wait(), 1);
  EXPECT_NE(server.process().err().find("stopped before every reply was finished"), std::string::npos)
      << server.process().err();
}

TEST(Serve, TheDrainTimeoutEndsWhatDoesNotEnd) {
  Server server({"--parallel", "1", "--queue", "100", "--drain-timeout", "0.05"});
  const auto streams = long_work(server.port());
  server.process().send(SIGTERM);
  EXPECT_EQ(server.process().wait(), 1);
}

TEST(Serve, AClientThatLeavesFreesItsSlot) {
  Server server({"--parallel", "1"});
  {
    Client stream(server.port());
    stream.send("POST", "/v1/chat/completions", kLongStream);
    ASSERT_TRUE(stream.read_until("\"content\":\""));
    EXPECT_EQ(server.busy_slots(), 1u);
  }
  EXPECT_TRUE(eventually([&] { return server.busy_slots() == 0; }, 5s));
  EXPECT_TRUE(eventually([&] {
    return server.call("GET", "/metrics").body.find("gem_requests_total{outcome=\"cancelled\"} 1\n") !=
           std::string::npos;
  }));
  // A plain reply, and one in the queue, likewise.
  Json plain = Json::parse(kLongStream);
  plain["stream"] = false;
  {
    Client first(server.port()), second(server.port());
    first.send("POST", "/v1/chat/completions", plain.dump());
    second.send("POST", "/v1/chat/completions", plain.dump());
    ASSERT_TRUE(eventually([&] {
      return server.call("GET", "/metrics").body.find("gem_requests_queued 1\n") != std::string::npos;
    }));
  }
  EXPECT_TRUE(eventually([&] { return server.busy_slots() == 0; }, 5s));
  EXPECT_NE(content_of(server.call("POST", "/v1/chat/completions", kQuestion)).find("42"), std::string::npos);
}

TEST(Serve, AFullQueueIsTold) {
  Server server({"--parallel", "1", "--queue", "0"});
  Client stream(server.port());
  stream.send("POST", "/v1/chat/completions", kLongStream);
  ASSERT_TRUE(stream.read_until("\"content\":\""));
  const HttpReply reply = server.call("POST", "/v1/chat/completions", kQuestion);
  EXPECT_EQ(reply.status, 429) << reply.body;
  EXPECT_NE(reply.head.find("Retry-After: "), std::string::npos) << reply.head;
}

TEST(Serve, JsonLog) {
  Server server({"--log-format", "json", "--metrics-names", "vllm"});
  EXPECT_NE(
      server.call("GET", "/metrics").body.find("vllm:num_requests_running{model_name=\"gem-demo\"} 0\n"),
      std::string::npos);
  server.process().send(SIGTERM);
  EXPECT_EQ(server.process().wait(), 0);
  std::size_t requests = 0;
  for (const std::string& line : lines_of(server.process().err())) {
    const Json entry = Json::parse(line);
    EXPECT_TRUE(entry.contains("time"));
    requests += entry.contains("event") ? 1 : 0;
  }
  EXPECT_EQ(requests, 1u);
}

TEST(Serve, APortInUse) {
  Server server;
  const Outcome second = gem_command("serve --port " + std::to_string(server.port()));
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.err.find("gem: error: "), std::string::npos) << second.err;
  EXPECT_NE(second.err.find(std::to_string(server.port())), std::string::npos) << second.err;
}

TEST(Serve, AModelThatIsNone) {
  const Folder folder;
  write_text(folder / "no.gguf", "nothing");
  EXPECT_EQ(gem_command("serve --port 0 -m " + (folder / "no.gguf").string()).status, 3);
}

TEST(Serve, OptionsThatCannotBe) {
  for (const char* options :
       {"--port 70000", "--parallel 0", "--api-key ''", "--cors-origin null", "--log-format xml",
        "--metrics-names none", "--api-prefix gem", "--drain-timeout -1", "--temperature -1",
        "--api-key-file /dev/null", "--log-level loud", "--max-body x"})
    EXPECT_EQ(gem_command(std::string("serve --port 0 ") + options).status, 2) << options;
}

TEST(Serve, WarnsWhenTheWorldMayCall) {
  Server server({"--host", "127.0.0.1"});
  EXPECT_EQ(server.process().err().find("everybody"), std::string::npos);
  Process open({"serve", "--port", "0", "--host", "0.0.0.0", "--threads", "1"});
  EXPECT_TRUE(
      eventually([&] { return open.err().find("everybody who reaches 0.0.0.0") != std::string::npos; }));
}

}  // namespace
}  // namespace gem::testing
