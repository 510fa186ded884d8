// The end of a server: in peace (drain), at once (stop), and twice.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "http_fixture.h"

namespace gem::server::http_test {
namespace {

bool refuses_connections(const Running& run) {
  return eventually([&] { return !Client(run.server.port()).connected(); });
}

TEST(HttpDrain, IdleConnectionsCloseRunningOnesFinish) {
  Running run;
  auto stream = std::make_shared<Feed>();
  auto later = std::make_shared<Feed>();
  run.app.route("/stream", [&](HttpRequest) { return event_reply(stream); });
  run.app.route("/later", [&](HttpRequest) { return pending_reply(later); });
  run.start();
  Client fresh = run.client();
  Client used = run.client();
  EXPECT_EQ(used.get("/echo").status, 200);
  Client streaming = run.client();
  streaming.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  streaming.read_head();
  Client waiting = run.client();
  waiting.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(later->attached.wait_for(1));
  Client half = run.client();
  half.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo");
  ASSERT_TRUE(eventually([&] { return run.server.connections() == 5; }));
  ::poll(nullptr, 0, 20);  // its first bytes are read

  run.server.drain();
  run.server.drain();
  EXPECT_TRUE(fresh.at_end());
  EXPECT_TRUE(used.at_end());
  EXPECT_TRUE(refuses_connections(run));
  EXPECT_FALSE(run.server.wait_until_drained(20ms));
  EXPECT_EQ(run.server.connections(), 3u);

  half.send("dy");
  const Received echoed = half.receive();
  EXPECT_EQ(echoed.body, "POST body");
  EXPECT_EQ(echoed.header("Connection"), "close");
  EXPECT_TRUE(half.at_end());

  later->answer({});
  EXPECT_EQ(waiting.receive().header("Connection"), "close");
  EXPECT_TRUE(waiting.at_end());

  stream->push("data: a\n\n");
  EXPECT_EQ(streaming.read_chunk(), "data: a\n\n");
  EXPECT_FALSE(run.server.wait_until_drained(0ms));
  stream->finish();
  EXPECT_EQ(streaming.read_chunk(), "");
  EXPECT_TRUE(streaming.at_end());
  EXPECT_TRUE(run.server.wait_until_drained(kPatience));
  EXPECT_EQ(run.server.connections(), 0u);
  for (const ExchangeRecord& record : run.app.records(4)) EXPECT_FALSE(record.aborted);
}

TEST(HttpDrain, UnderLoadEveryAnswerIsWhole) {
  Running run;
  run.start();
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (true) {
        Client client = run.client();
        if (!client.connected()) return;
        for (int k = 0; k < 20; ++k) {
          if (!client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")) break;
          const Received reply = client.receive();
          if (reply.status == 0) break;  // closed between two requests: allowed
          EXPECT_TRUE(reply.whole);
          EXPECT_EQ(reply.body, "POST hello");
          ++answered;
          if (reply.header("Connection") == "close") break;
        }
      }
    });
  }
  ASSERT_TRUE(eventually([&] { return answered > 100; }));
  run.server.drain();
  EXPECT_TRUE(run.server.wait_until_drained(kPatience));
  for (std::thread& thread : threads) thread.join();
}

TEST(HttpStop, ClosesEverythingNow) {
  Running run;
  auto stream = std::make_shared<Feed>();
  auto later = std::make_shared<Feed>();
  Latch inside, leave;
  run.app.route("/stream", [&](HttpRequest) { return event_reply(stream); });
  run.app.route("/later", [&](HttpRequest) { return pending_reply(later); });
  run.app.route("/slow", [&](HttpRequest) {
    inside.add();
    leave.wait_for(1);
    return Reply(HttpResponse{});
  });
  run.start();
  std::vector<Client> clients;
  for (const char* path : {"/stream", "/later", "/slow", "/slow", "/slow", "/slow"}) {
    clients.push_back(run.client());
    clients.back().send(std::string("GET ") + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    if (path == std::string("/stream")) clients.back().read_head();
    if (path == std::string("/later")) {
      ASSERT_TRUE(later->attached.wait_for(1));
    }
  }
  clients.push_back(run.client());
  clients.back().send("POST /echo HTTP/1.1\r\n");
  ASSERT_TRUE(inside.wait_for(2));  // both workers; two more wait
  ASSERT_TRUE(eventually([&] { return run.server.connections() == 7; }));
  EXPECT_EQ(run.client().get("/missing").status, 404);  // what came before has been read by now
  run.server.drain();                                   // the first signal
  std::thread second([&] { run.server.stop(); });       // the second
  EXPECT_TRUE(stream->destroyed.wait_for(1)) << "even while a worker is busy";
  EXPECT_TRUE(later->destroyed.wait_for(1));
  for (Client& client : clients) EXPECT_TRUE(client.at_end());
  leave.add();
  run.server.stop();  // both may call it
  second.join();
  EXPECT_EQ(run.server.connections(), 0u);
  EXPECT_TRUE(run.server.wait_until_drained(0ms));
  stream->ring();
  later->ring();
  EXPECT_EQ(inside.count(), 2) << "calls that waited are not made";
  const auto records = run.app.records(7);
  EXPECT_EQ(records.size(), 7u);
  for (const ExchangeRecord& record : records) EXPECT_EQ(record.aborted, record.path != "/missing");
}

TEST(HttpStop, InEveryState) {
  { Running never; }
  {
    Running never;
    never.server.drain();
    never.server.stop();
    never.server.stop();
    EXPECT_TRUE(never.server.wait_until_drained(0ms));
    EXPECT_TRUE(refuses_connections(never));
    never.server.start();  // too late, and harmless
    never.server.stop();
  }
  {
    Running run;
    run.start();
    run.start();
    EXPECT_EQ(run.client().get("/echo").status, 200);
  }
  {
    Running run;
    run.start();
    run.server.drain();
    EXPECT_TRUE(run.server.wait_until_drained(kPatience));
  }
}

TEST(HttpStop, UnderLoadAgainAndAgain) {
  for (int round = 0; round < 20; ++round) {
    Running run;
    auto feed = std::make_shared<Feed>();
    run.app.route("/stream", [&](HttpRequest) { return event_reply(feed); });
    run.start();
    std::vector<Client> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(run.client());
      clients.back().send(std::string("GET ") + (i % 2 == 0 ? "/echo" : "/stream") +
                          " HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    std::thread ringer([&] {
      for (int i = 0; i < 100; ++i) feed->push("x");
    });
    if (round % 2 == 0) {
      ASSERT_TRUE(run.app.handled.wait_for(round / 3));
    }
    run.server.stop();
    ringer.join();
  }
}

}  // namespace
}  // namespace gem::server::http_test
