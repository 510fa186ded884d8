// Replies that come piece by piece, and their ends.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "http_fixture.h"

namespace gem::server::http_test {
namespace {

const std::string kGet = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";

class HttpStream : public testing::Test {
 protected:
  // One server, one feed for each request of /stream, in the order of the requests.
  void start(HttpOptions options = quick_options()) {
    run = std::make_unique<Running>(std::move(options));
    run->app.route("/stream", [this](HttpRequest) {
      auto feed = std::make_shared<Feed>();
      feed->endless = endless;
      {
        const std::lock_guard lock(mutex);
        feeds.push_back(feed);
      }
      made.add();
      return event_reply(feed);
    });
    run->start();
  }
  std::shared_ptr<Feed> feed(int index) {
    EXPECT_TRUE(made.wait_for(index + 1));
    const std::lock_guard lock(mutex);
    return feeds.at(static_cast<std::size_t>(index));
  }
  bool empty() {
    return eventually([&] { return run->server.connections() == 0; });
  }

  std::mutex mutex;
  std::vector<std::shared_ptr<Feed>> feeds;
  Latch made;
  std::atomic<bool> endless{false};
  std::unique_ptr<Running> run;
};

TEST_F(HttpStream, HeadersComeAtOnceAndPiecesAsTheyAre) {
  start();
  Client client = run->client();
  client.send(kGet);
  const Received head = client.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Type"), "text/event-stream");
  EXPECT_EQ(head.header("Transfer-Encoding"), "chunked");
  EXPECT_EQ(head.header("Server"), "fake");
  auto source = feed(0);
  for (const char* piece : {"data: a\n\n", "data: b\n\n"}) {
    source->push(piece);
    EXPECT_EQ(client.read_chunk(), piece);
  }
  {
    const std::lock_guard lock(source->mutex);
    source->text = "data: [DONE]\n\n";
    source->done = true;
  }
  source->ring();
  EXPECT_EQ(client.read_chunk(), "data: [DONE]\n\n");
  EXPECT_EQ(client.read_chunk(), "");
  EXPECT_TRUE(source->destroyed.wait_for(1));
  EXPECT_EQ(client.get("/echo").status, 200) << "the connection goes on";
  const auto record = run->app.records(1)[0];
  EXPECT_EQ(record.status, 200);
  EXPECT_FALSE(record.aborted);
}

TEST_F(HttpStream, HeadHasNoBodyAndHttp10NoChunks) {
  start();
  Client client = run->client();
  client.send("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive(true).header("Content-Type"), "text/event-stream");
  EXPECT_TRUE(feed(0)->destroyed.wait_for(1));
  EXPECT_EQ(feed(0)->attached.count(), 0);
  EXPECT_EQ(client.get("/echo").status, 200);

  Client old = run->client();
  old.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  feed(1)->push("data: a\n\n");
  ASSERT_TRUE(old.read_until("data: a\n\n"));
  feed(1)->finish();
  const Received reply = old.receive();
  EXPECT_EQ(reply.body, "data: a\n\n");
  EXPECT_EQ(reply.header("Transfer-Encoding"), "");
  EXPECT_EQ(reply.header("Connection"), "close") << "nothing else tells where the body ends";
}

TEST_F(HttpStream, SilenceIsFilledWithHeartbeats) {
  HttpOptions options = quick_options();
  options.heartbeat = 30ms;
  start(options);
  Client client = run->client();
  client.send(kGet);
  client.read_head();
  EXPECT_EQ(client.read_chunk(), ":\n\n");
  EXPECT_EQ(client.read_chunk(), ":\n\n");
  feed(0)->push("data: a\n\n");
  std::string last;
  do {
    last = client.read_chunk().value_or("");
  } while (last == ":\n\n");
  EXPECT_EQ(last, "data: a\n\n");
  feed(0)->finish();
}

TEST_F(HttpStream, ManyWakesAreFewPulls) {
  start();
  Client client = run->client();
  client.send(kGet);
  client.read_head();
  auto source = feed(0);
  ASSERT_TRUE(source->attached.wait_for(1));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5000; ++k) source->push("x");
    });
  }
  for (std::thread& thread : threads) thread.join();
  source->finish();
  std::string all;
  for (auto chunk = client.read_chunk(); chunk && !chunk->empty(); chunk = client.read_chunk()) all += *chunk;
  EXPECT_EQ(all, std::string(20'000, 'x')) << "no wake is lost";
  EXPECT_LT(source->pulls.count(), 20'000);
}

TEST_F(HttpStream, TheClientsEndIsTheSourcesEnd) {
  start();
  int index = 0;
  for (const char* how : {"close", "reset", "half"}) {
    Client client = run->client();
    client.send(kGet);
    client.read_head();
    auto source = feed(index++);
    source->push("data: a\n\n");
    EXPECT_EQ(client.read_chunk(), "data: a\n\n");
    const auto left = steady_clock::now();
    if (how[0] == 'c') client.close();
    if (how[0] == 'r') client.reset();
    if (how[0] == 'h') client.half_close();
    EXPECT_TRUE(source->destroyed.wait_for(1)) << how;
    EXPECT_LT(steady_clock::now() - left, 2s) << "not by a timeout";
    source->push("to nobody");  // wakes after the end reach nothing
    EXPECT_TRUE(empty());
    const auto record = run->app.records(static_cast<std::size_t>(index)).back();
    EXPECT_EQ(record.status, 200);
    EXPECT_TRUE(record.aborted);
  }
}

// The end shows behind pipelined requests too, be they more than is read ahead (256 KB).
TEST_F(HttpStream, TheClientsEndShowsBehindPipelinedBytes) {
  start();
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{300} << 10}) {
    Client client = run->client();
    client.send(kGet);
    client.read_head();
    auto source = feed(made.count() - 1);
    ASSERT_TRUE(source->attached.wait_for(1));
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n" +
                std::string(bytes, 'x'));
    source->push("data: a\n\n");
    EXPECT_EQ(client.read_chunk(), "data: a\n\n") << "what waits does not disturb the reply";
    client.close();
    EXPECT_TRUE(source->destroyed.wait_for(1)) << bytes;
    EXPECT_TRUE(empty());
  }
}

// S12: a reader that stops is bounded, disturbs nobody, and is dropped.
TEST_F(HttpStream, AStalledReaderIsBoundedAndDropped) {
  HttpOptions options = quick_options();
  options.write_timeout = 300ms;
  options.send_buffer_bytes = 64 << 10;
  start(options);
  endless = true;
  Client stalled = run->client(8 << 10);
  stalled.send(kGet);
  auto flood = feed(0);
  ASSERT_TRUE(flood->attached.wait_for(1));
  endless = false;
  // Meanwhile another one is served.
  Client reader = run->client();
  reader.send(kGet);
  reader.read_head();
  feed(1)->push("data: a\n\n");
  EXPECT_EQ(reader.read_chunk(), "data: a\n\n");
  EXPECT_TRUE(flood->destroyed.wait_for(1));
  // What was ever taken from the source: sockets' buffers, the limit, and the one piece that crossed it.
  EXPECT_LT(flood->pulled, 2u << 20);
  const auto record = run->app.records(1)[0];
  EXPECT_EQ(record.status, 200);
  EXPECT_TRUE(record.aborted);
  EXPECT_TRUE(eventually([&] { return run->server.connections() == 1; }));
  feed(1)->finish();
  EXPECT_EQ(reader.read_chunk(), "");
}

TEST_F(HttpStream, ASlowReaderGetsEverything) {
  HttpOptions options = quick_options();
  options.write_timeout = options.heartbeat = 1h;  // nothing but the reader's progress may wake the stream
  options.send_buffer_bytes = 16 << 10;
  start(options);
  Client client = run->client(8 << 10);
  client.send(kGet);
  auto source = feed(0);
  ASSERT_TRUE(source->attached.wait_for(1));
  std::string sent;
  for (int i = 0; i < 200; ++i) {
    const std::string piece = "data: " + std::string(10'000, static_cast<char>('a' + i % 26)) + "\n\n";
    sent += piece;
    source->push(piece);
  }
  source->finish();
  const Received reply = client.receive();
  EXPECT_TRUE(reply.whole);
  EXPECT_TRUE(reply.body == sent);
}

TEST_F(HttpStream, ABrokenSourceEndsItsConnectionOnly) {
  start();
  Client client = run->client();
  client.send(kGet);
  client.read_head();
  auto source = feed(0);
  ASSERT_TRUE(source->attached.wait_for(1));
  {
    const std::lock_guard lock(source->mutex);
    source->fails = true;
  }
  source->ring();
  EXPECT_EQ(client.read_chunk(), std::nullopt) << "a body without its end shows that it failed";
  EXPECT_TRUE(source->destroyed.wait_for(1));
  EXPECT_TRUE(run->app.records(1)[0].aborted);
  EXPECT_EQ(run->client().get("/echo").status, 200);
}

TEST_F(HttpStream, WakesMayOutliveTheServer) {
  start();
  Client client = run->client();
  client.send(kGet);
  client.read_head();
  auto source = feed(0);
  ASSERT_TRUE(source->attached.wait_for(1));
  std::atomic<bool> enough{false};
  std::thread ringer([&] {
    while (!enough) source->ring();
  });
  run.reset();
  EXPECT_TRUE(source->destroyed.wait_for(1));
  source->ring();
  enough = true;
  ringer.join();
}

std::size_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return static_cast<std::size_t>(std::stoull(line.substr(6)));
  }
  return 0;
}

int threads_now() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  }
  return 0;
}

// Case 46: 200 idle readers cost no thread and little memory (both ends of every connection are counted
// here).
TEST_F(HttpStream, TwoHundredIdleReaders) {
  HttpOptions options = quick_options();
  options.heartbeat = 200ms;
  start(options);
  std::vector<Client> clients;
  const auto open_some = [&](int n) {
    for (int i = 0; i < n; ++i) {
      clients.push_back(run->client());
      clients.back().send(kGet);
      ASSERT_EQ(clients.back().read_head().status, 200);
    }
  };
  open_some(20);  // whatever is allocated once
  [[maybe_unused]] const std::size_t before = resident_kib();
  const int threads = threads_now();
  open_some(200);
  EXPECT_EQ(threads_now(), threads);
  EXPECT_EQ(run->server.connections(), 220u);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(resident_kib() - before, 200u * 16) << "KiB for 200 readers";
#endif
  std::vector<std::shared_ptr<Feed>> sources;
  for (int i = 0; i < 220; ++i) sources.push_back(feed(i));
  for (auto& source : sources) ASSERT_TRUE(source->heartbeats.wait_for(2));
  // All of them are alive.
  for (auto& source : sources) source->push("data: a\n\n");
  for (Client& client : clients) EXPECT_TRUE(client.read_until("data: a\n\n"));
  clients.clear();
  EXPECT_TRUE(empty());
  for (auto& source : sources) EXPECT_TRUE(source->destroyed.wait_for(1));
  run->app.records(220);
}

}  // namespace
}  // namespace gem::server::http_test
