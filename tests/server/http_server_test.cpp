// Ordinary exchanges: what every client does.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "base/error.h"
#include "http_fixture.h"
#include "server/http/listener.h"
#include "server/http/response_head.h"

namespace gem::server::http_test {
namespace {

std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  Running run;
  run.start();
  Client client = run.client();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post("/echo", "hello")));
    const Received reply = client.receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST hello");
    EXPECT_EQ(reply.header("Content-Type"), "text/plain");
    EXPECT_EQ(reply.header("Server"), "fake");
    EXPECT_EQ(reply.header("Connection"), "");
    EXPECT_EQ(reply.header("Date").size(), 29u);
  }
  EXPECT_EQ(run.server.connections(), 1u);
  const auto records = run.app.records(3);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].method, "POST");
  EXPECT_EQ(records[0].path, "/echo");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_FALSE(records[0].aborted);
  EXPECT_EQ(records[0].bytes_in, 5u);
  EXPECT_GT(records[0].bytes_out, 10u);
  EXPECT_EQ(records[0].peer.rfind("127.0.0.1:", 0), 0u);
}

TEST(HttpServer, HeadIsGetWithoutTheBody) {
  Running run;
  run.start();
  Client client = run.client();
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  const Received head = client.receive(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), "5");  // "HEAD "
  EXPECT_EQ(client.get("/echo").body, "GET ");    // nothing of a body lies between
}

TEST(HttpServer, StatusesWithoutABodyHaveNone) {
  Running run;
  run.app.route("/none", [](HttpRequest) {
    HttpResponse response;
    response.status = 204;
    response.body = "never seen";
    return Reply(std::move(response));
  });
  run.start();
  Client client = run.client();
  const Received reply = client.get("/none");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.header("Content-Length"), "");
  EXPECT_EQ(client.get("/echo").body, "GET ");
}

TEST(HttpServer, EndsTheConnectionWhenTheClientWishes) {
  Running run;
  run.start();
  Client client = run.client();
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const Received reply = client.receive();
  EXPECT_EQ(reply.body, "GET ");
  EXPECT_EQ(reply.header("Connection"), "close");
  EXPECT_TRUE(client.at_end());

  Client old = run.client();
  old.send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.receive().header("Connection"), "close");
  EXPECT_TRUE(old.at_end());

  Client old_keeping = run.client();
  for (int i = 0; i < 2; ++i) {
    old_keeping.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(old_keeping.receive().header("Connection"), "keep-alive");
  }
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  Running run;
  auto feed = std::make_shared<Feed>();
  run.app.route("/stream", [&](HttpRequest) { return event_reply(feed); });
  run.start();
  Client client = run.client();
  std::string all;
  for (int i = 0; i < 50; ++i) all += post("/echo", std::to_string(i)) + post("/missing", "body");
  all += "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n" + post("/echo", "last");
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(client.receive().body, "POST " + std::to_string(i));
    ASSERT_EQ(client.receive().status, 404);
  }
  ASSERT_TRUE(feed->attached.wait_for(1));
  feed->push("a");
  feed->finish();
  EXPECT_EQ(client.receive().body, "a");
  EXPECT_EQ(client.receive().body, "POST last");
}

TEST(HttpServer, AByteAtATime) {
  Running run;
  run.start();
  Client client = run.client();
  const int on = 1;
  ::setsockopt(client.fd(), IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof on);
  for (const char c : post("/echo", "slow but steady")) ASSERT_TRUE(client.send(std::string(1, c)));
  EXPECT_EQ(client.receive().body, "POST slow but steady");
}

TEST(HttpServer, LargeBodiesBothWays) {
  Running run;
  run.start();
  Client client = run.client();
  std::string body(8 << 20, 'x');
  for (std::size_t i = 0; i < body.size(); i += 997) body[i] = static_cast<char>('a' + i % 26);
  std::thread sender([&] { EXPECT_TRUE(client.send(post("/echo", body))); });
  const Received reply = client.receive();
  sender.join();
  EXPECT_TRUE(reply.body == "POST " + body);
}

TEST(HttpServer, AskedForLeaveToSendABodyItGivesIt) {
  Running run;
  run.start();
  Client client = run.client();
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  client.send("body");
  EXPECT_EQ(client.receive().body, "POST body");
  // With the body there already nobody waits for leave.
  client.send(post("/echo", "here", "Expect: 100-continue\r\n"));
  EXPECT_EQ(client.receive().body, "POST here");
  // A refusal comes instead of the leave; where the next request would begin is unknown then.
  client.send("POST /missing HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  const Received refusal = client.receive();
  EXPECT_EQ(refusal.status, 404);
  EXPECT_EQ(refusal.header("Connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST(HttpServer, NothingEchoedCanStartAHeader) {
  Running run;
  run.app.route("/inject", [](HttpRequest) {
    HttpResponse response;
    response.headers = {{"X-Echo", "a\r\nSet-Cookie: b"}, {"Content-Length", "1"}, {"Connection", "close"}};
    response.body = "whole";
    return Reply(std::move(response));
  });
  run.start();
  Client client = run.client();
  const Received reply = client.get("/inject");
  EXPECT_EQ(reply.header("X-Echo"), "a  Set-Cookie: b");
  EXPECT_EQ(reply.header("Set-Cookie"), "");
  EXPECT_EQ(reply.body, "whole");
  EXPECT_EQ(client.get("/echo").status, 200);
}

TEST(HttpServer, PendingRepliesComeWhenTheyAreReady) {
  Running run;
  auto feed = std::make_shared<Feed>();
  run.app.route("/later", [&](HttpRequest) { return pending_reply(feed); });
  run.start();
  Client client = run.client();
  client.send(post("/later", "x"));
  ASSERT_TRUE(feed->attached.wait_for(1));
  feed->ring();  // for nothing
  EXPECT_TRUE(client.silent_for(20ms));
  HttpResponse response;
  response.status = 201;
  response.body = "now";
  feed->answer(response);
  const Received reply = client.receive();
  EXPECT_EQ(reply.status, 201);
  EXPECT_EQ(reply.body, "now");
  EXPECT_EQ(reply.header("Server"), "fake");
  EXPECT_TRUE(feed->destroyed.wait_for(1));
  feed->ring();  // after its end
  EXPECT_EQ(client.get("/echo").status, 200);
}

TEST(HttpServer, AFaultOfTheApplicationIs500) {
  Running run;
  auto feed = std::make_shared<Feed>();
  feed->fails = true;
  run.app.route("/throws", [](HttpRequest) -> Reply { throw std::runtime_error("secret"); });
  run.app.route("/later", [&](HttpRequest) { return pending_reply(feed); });
  run.start();
  Client client = run.client();
  for (const char* path : {"/throws", "/later"}) {
    const Received reply = client.get(path);
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(reply.body, std::string(path) + ": internal error");
  }
  EXPECT_EQ(client.get("/echo").status, 200);
}

TEST(HttpServer, IdleConnectionsEnd) {
  HttpOptions options = quick_options();
  options.idle_timeout = 50ms;
  Running run(options);
  run.start();
  Client fresh = run.client();
  Client used = run.client();
  used.get("/echo");
  used.send("\r\n");  // belongs to no request
  EXPECT_TRUE(fresh.at_end());
  EXPECT_TRUE(used.at_end());
  EXPECT_TRUE(eventually([&] { return run.server.connections() == 0; }));
  EXPECT_EQ(run.app.records(1).size(), 1u);
}

TEST(HttpServer, RequestsAreHandledSideBySide) {
  HttpOptions options = quick_options();
  options.workers = 3;
  Running run(options);
  Latch inside;
  run.app.route("/meet", [&](HttpRequest) {
    inside.add();
    HttpResponse response;
    response.status = inside.wait_for(3) ? 200 : 500;
    return Reply(std::move(response));
  });
  run.start();
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(run.client());
    clients.back().send("GET /meet HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  for (Client& client : clients) EXPECT_EQ(client.receive().status, 200);
}

// ---- addresses
// ---------------------------------------------------------------------------------------------

TEST(HttpListener, TakesAFreePortAndNamesIt) {
  Running run;
  EXPECT_NE(run.server.port(), 0);
  EXPECT_EQ(run.server.address(), "http://127.0.0.1:" + std::to_string(run.server.port()));
}

TEST(HttpListener, LocalhostListensOnIPv4AtLeast) {
  HttpOptions options = quick_options();
  options.host = "localhost";
  Running run(options);
  run.start();
  EXPECT_EQ(run.client().get("/echo").status, 200);
}

std::string error_of(const std::string& host, std::uint16_t port) {
  FakeApp app;
  HttpOptions options;
  options.host = host;
  options.port = port;
  try {
    const HttpServer server(app, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kFailed);
    return e.what();
  }
  return "";
}

TEST(HttpListener, NamesTheAddressItCannotHave) {
  Running run;
  const std::string port = std::to_string(run.server.port());
  EXPECT_NE(error_of("127.0.0.1", run.server.port()).find("127.0.0.1 port " + port), std::string::npos);
  EXPECT_NE(error_of("192.0.2.1", 0).find("192.0.2.1"), std::string::npos);
  EXPECT_NE(error_of("no.such.host.invalid", 0).find("no.such.host.invalid"), std::string::npos);
}

class SocketFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "gem-http-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    path = folder / "gem.sock";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  HttpOptions options() const {
    HttpOptions result;
    result.host = path.string();
    return result;
  }
  std::filesystem::path folder, path;
};

TEST_F(SocketFolder, ServesOnAUnixSocket) {
  {
    Running run(options());
    run.start();
    EXPECT_EQ(run.server.address(), path.string());
    EXPECT_EQ(run.server.port(), 0);
    Client client(path.string());
    EXPECT_EQ(client.get("/echo").body, "GET ");
    EXPECT_EQ(run.app.records(1)[0].peer, "unix");
    EXPECT_NE(error_of(path.string(), 0).find("another process listens there"), std::string::npos);
    EXPECT_EQ(client.get("/echo").status, 200) << "the second server must not disturb the first";
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "the file goes with its server";
}

TEST_F(SocketFolder, ReplacesTheFileOfADeadServerOnly) {
  {
    Listeners dead = listen_on(path.string(), 0);  // no SocketFile: its file stays, as after a crash
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  {
    Running run(options());
    run.start();
    EXPECT_EQ(Client(path.string()).get("/echo").status, 200);
    // Somebody else has put another file there: it is not ours to remove.
    std::filesystem::remove(path);
    Listeners other = listen_on(path.string(), 0);
    run.server.stop();
    EXPECT_TRUE(std::filesystem::exists(path));
    std::filesystem::remove(path);
  }
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fclose(file);
  EXPECT_NE(error_of(path.string(), 0).find("is not a socket"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  EXPECT_NE(error_of((folder / (std::string(120, 'x') + ".sock")).string(), 0).find("at most 107 bytes"),
            std::string::npos);
}

TEST(HttpResponseHead, DatesAsTheStandardWritesThem) {
  EXPECT_EQ(http_date(std::chrono::system_clock::from_time_t(784111777)), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(std::chrono::system_clock::from_time_t(1709164799)), "Wed, 28 Feb 2024 23:59:59 GMT");
}

}  // namespace
}  // namespace gem::server::http_test
