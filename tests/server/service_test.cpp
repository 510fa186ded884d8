// The service: queue, cancellation, outboxes, failures, drain and stop. On a tiny random model whose rounds
// the tests let through one by one, so that "within one step" is counted and not timed.
#include "server/service.h"

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "server/api/api_error.h"
#include "service_support.h"

namespace gem::server {
namespace {

using testing::Client;
using testing::eventually;
using testing::Gate;

class Watcher : public ServiceObserver {
 public:
  // All of it under the lock.
  template <typename F>
  auto note(F&& f) {
    const std::lock_guard lock(mutex);
    return f();
  }

  void on_queued() override {
    note([&] { ++queued; });
  }
  void on_started(double, std::uint32_t prompt_tokens, std::uint32_t) override {
    note([&] { started.push_back(prompt_tokens); });
  }
  void on_first_token(double) override {
    note([&] { ++first_tokens; });
  }
  void on_token(double) override {
    note([&] { ++tokens; });
  }
  void on_finished(const GenerationResult& result, double) override {
    note([&] { finished.push_back(result.reason); });
  }
  void on_round(std::uint32_t rows, std::uint32_t streams, double) override {
    note([&] {
      ++rounds;
      most_rows = std::max(most_rows, rows);
      most_streams = std::max(most_streams, streams);
    });
  }
  std::mutex mutex;
  std::size_t queued = 0, first_tokens = 0, tokens = 0, rounds = 0;
  std::uint32_t most_rows = 0, most_streams = 0;
  std::vector<std::uint32_t> started;
  std::vector<FinishReason> finished;
};

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = gem::testing::golden_file("models/dense-a/q4_0.gguf");
    if (!path) GTEST_SKIP() << "golden model not at hand";
    model_ = *path;
  }
  void TearDown() override { gate_.open(); }  // before the service goes

  Service& serve(std::uint32_t streams, std::size_t queue = 64, std::uint64_t prompt_cache = 0,
                 SessionOptions options = {}, std::function<void(const std::string&)> on_lost = {}) {
    session_ = testing::gated_session(model_, gate_, streams, 1024, 24, prompt_cache, std::move(options));
    service_ = std::make_unique<Service>(
        *session_, ServiceOptions{.queue = queue, .on_lost = std::move(on_lost)}, &watcher_);
    return *service_;
  }

  // Text tokens only, so that nothing is taken for a marker; the reply goes on to its limit.
  GenerationJob job(std::uint32_t seed, std::size_t prompt, std::uint32_t reply) const {
    std::mt19937 random(seed);
    GenerationJob j;
    std::vector<std::int32_t> ids = {2};
    while (ids.size() < prompt) ids.push_back(static_cast<std::int32_t>(300 + random() % 500));
    j.request = session_->request(std::move(ids), {});
    j.request.max_tokens = reply;
    j.request.sampling.seed = seed;
    j.request.end_tokens.clear();
    j.parse = false;
    j.token_details = true;
    return j;
  }
  Client submit(GenerationJob j) {
    std::vector<GenerationJob> jobs;
    jobs.push_back(std::move(j));
    return Client(std::move(service_->submit(std::move(jobs)).front()));
  }
  int refused(std::vector<GenerationJob> jobs) {
    try {
      service_->submit(std::move(jobs));
    } catch (const ApiError& e) {
      return e.status;
    }
    return 0;
  }
  int refused(GenerationJob j) {
    std::vector<GenerationJob> jobs;
    jobs.push_back(std::move(j));
    return refused(std::move(jobs));
  }
  // The tokens of the same job on an engine of its own.
  std::vector<std::int32_t> alone(const GenerationJob& j) {
    struct Sink : StreamSink {
      void on_prompt(std::uint32_t, std::uint32_t) override {}
      bool on_token(const DrawnToken& drawn) override {
        tokens.push_back(drawn.token);
        return true;
      }
      void on_finish(FinishReason) override {}
      std::vector<std::int32_t> tokens;
    } sink;
    if (plain_ == nullptr) {
      SessionOptions options;
      options.model = model_;
      options.threads = 1;
      options.context = 1024;
      options.any_geometry = true;
      plain_ = Session::open(options);
    }
    plain_->engine().run(*plain_->engine().open(j.request, sink));
    return sink.tokens;
  }

  std::string model_;
  Gate gate_;
  Watcher watcher_;
  std::unique_ptr<Session> session_, plain_;
  std::unique_ptr<Service> service_;
};

TEST_F(ServiceTest, TheQueueIsServedInOrderAndHasALimit) {
  Service& service = serve(1, 3);
  std::vector<Client> clients;
  clients.push_back(submit(job(0, 20, 3)));
  gate_.round(1);  // it has its slot
  for (std::uint32_t i = 1; i < 4; ++i) clients.push_back(submit(job(i, 10 + i, 3)));
  const ServiceStatus status = service.status();
  EXPECT_EQ(status.running, 1u);
  EXPECT_EQ(status.queued, 3u);
  EXPECT_EQ(status.kv_total, 1024u);
  try {
    std::vector<GenerationJob> one;
    one.push_back(job(9, 10, 3));
    service.submit(std::move(one));
    ADD_FAILURE() << "the queue has a limit";
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 429);
    EXPECT_GE(e.retry_after.value_or(0), 1u);
  }
  gate_.open();
  for (Client& c : clients) {
    const GenerationResult& result = c.finish();
    EXPECT_EQ(result.reason, FinishReason::kLength);
    EXPECT_EQ(result.times.reply_tokens, 3u);
    EXPECT_GT(result.queue_seconds, 0);
  }
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  watcher_.note([&] {
    EXPECT_EQ(watcher_.queued, 4u);
    EXPECT_EQ(watcher_.started, (std::vector<std::uint32_t>{20, 11, 12, 13}));
    EXPECT_EQ(watcher_.first_tokens, 4u);
    EXPECT_EQ(watcher_.tokens, 8u);
    EXPECT_EQ(watcher_.finished.size(), 4u);
    EXPECT_EQ(watcher_.rounds, gate_.rounds());
    EXPECT_EQ(watcher_.most_streams, 1u);
    EXPECT_EQ(watcher_.most_rows, 20u);
  });
}

TEST_F(ServiceTest, RepliesOfARequestComeAllOrNone) {
  Service& service = serve(2, 1);
  const auto jobs = [&](std::uint32_t n) {
    std::vector<GenerationJob> all;
    for (std::uint32_t i = 0; i < n; ++i) all.push_back(job(i, 10, 2));
    return all;
  };
  EXPECT_EQ(refused(jobs(4)), 429);
  EXPECT_EQ(service.status().queued + service.status().running, 0u);
  auto three = service.submit(jobs(3));  // two streams and a place in the queue
  EXPECT_EQ(refused(jobs(1)), 429);
  // One bad job among good ones: none is taken.
  three.clear();
  gate_.open();
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  std::vector<GenerationJob> bad = jobs(2);
  bad[1].request.sampling.temperature = -1;
  EXPECT_EQ(refused(std::move(bad)), 400);
  bad = jobs(2);
  bad[1].request.prompt.clear();
  EXPECT_EQ(refused(std::move(bad)), 400);
  EXPECT_EQ(service.status().queued + service.status().running, 0u);
  EXPECT_TRUE(service.submit({}).empty());
}

TEST_F(ServiceTest, APromptThatDoesNotFitIsRefusedWithBothNumbers) {
  serve(1);
  try {
    std::vector<GenerationJob> one;
    one.push_back(job(0, 1024, 1));
    service_->submit(std::move(one));
    ADD_FAILURE();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.type, "exceed_context_size_error");
    EXPECT_EQ(e.prompt_tokens, 1024u);
    EXPECT_EQ(e.context, 1024u);
  }
  EXPECT_EQ(refused(job(0, 1023, 1)), 0);
}

TEST_F(ServiceTest, ConcurrentEqualsAlone) {
  Service& service = serve(3);
  gate_.open();
  std::vector<GenerationJob> jobs;
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint32_t i = 0; i < 6; ++i) {
    jobs.push_back(job(i, 5 + 37 * i % 101, 6 + 5 * i % 23));
    expected.push_back(alone(jobs.back()));
  }
  std::vector<Client> clients;
  for (auto& generation : service.submit(std::move(jobs))) clients.emplace_back(std::move(generation));
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].finish();
    EXPECT_EQ(clients[i].tokens(), expected[i]) << i;
  }
  EXPECT_EQ(watcher_.note([&] { return watcher_.most_streams; }), 3u);
}

TEST_F(ServiceTest, LeavingTheQueueFreesThePlaceAtOnce) {
  Service& service = serve(1, 1);
  Client running = submit(job(0, 10, 4));
  gate_.round(1);
  Client waiting = submit(job(1, 11, 4));
  EXPECT_EQ(refused(job(2, 12, 4)), 429);
  waiting.leave();
  EXPECT_EQ(gate_.rounds(), 1u);  // no round has passed
  Client next = submit(job(3, 13, 4));
  next.generation().cancel();
  Client last = submit(job(4, 14, 4));
  gate_.open();
  EXPECT_EQ(next.finish().reason, FinishReason::kCancelled);
  EXPECT_EQ(last.finish().reason, FinishReason::kLength);
  EXPECT_EQ(running.finish().reason, FinishReason::kLength);
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  watcher_.note([&] {
    EXPECT_EQ(watcher_.started, (std::vector<std::uint32_t>{10, 14}));
    EXPECT_EQ(watcher_.finished.size(), 4u);
  });
}

// Chunks of 24 rows: a prompt of 200 takes nine rounds. Its client leaves while the third one runs; the
// fourth one serves the next in the queue.
TEST_F(ServiceTest, LeavingInThePromptFreesTheSlotWithinOneStep) {
  serve(1);
  Client leaves = submit(job(0, 200, 10));
  gate_.allow(2);
  EXPECT_EQ(gate_.round(3), std::vector<std::uint32_t>{24});
  Client next = submit(job(1, 7, 3));
  leaves.leave();
  gate_.allow(1);
  EXPECT_EQ(gate_.round(4), std::vector<std::uint32_t>{7});
  EXPECT_EQ(service_->status().running, 1u);
  gate_.open();
  EXPECT_EQ(next.finish().reason, FinishReason::kLength);
}

TEST_F(ServiceTest, LeavingBetweenTokensFreesTheSlotWithinOneStep) {
  serve(2);
  Client leaves = submit(job(0, 5, 500));
  gate_.round(1);
  gate_.allow(6);
  EXPECT_EQ(gate_.round(7), std::vector<std::uint32_t>{1});
  Client stays = submit(job(1, 8, 3));  // what a prompt gets beside a reply before its cost is known
  Client waits = submit(job(2, 8, 3));
  gate_.allow(1);
  EXPECT_EQ(gate_.round(8), (std::vector<std::uint32_t>{1, 8}));
  leaves.leave();
  gate_.allow(1);
  // The one that waited has its slot, and of its state the first token.
  EXPECT_EQ(gate_.round(9), (std::vector<std::uint32_t>{1, 7}));
  gate_.open();
  EXPECT_EQ(stays.finish().reason, FinishReason::kLength);
  EXPECT_EQ(waits.finish().reason, FinishReason::kLength);
  EXPECT_EQ(watcher_.note([&] { return watcher_.finished.front(); }), FinishReason::kCancelled);
}

TEST_F(ServiceTest, ACancelledReplyTellsWhatItHad) {
  serve(1);
  Client client = submit(job(0, 5, 500));
  gate_.allow(4);
  client.take_until([](const GenerationUpdate& u) { return u.tokens.size() == 4; });
  gate_.round(5);
  client.generation().cancel();
  gate_.allow(1);
  const GenerationResult& result = client.finish();
  EXPECT_EQ(result.reason, FinishReason::kCancelled);
  EXPECT_TRUE(result.error.empty());
  EXPECT_EQ(result.times.reply_tokens, 5u);
  EXPECT_EQ(client.tokens().size(), 5u);
  EXPECT_FALSE(client.generation().end_thought());
}

// A client that takes nothing: what waits for it stays within its bound, it is given up, and nobody else
// notices.
TEST_F(ServiceTest, AClientThatNeverTakesIsDropped) {
  Service& service = serve(2);
  GenerationJob greedy = job(0, 5, 900);
  greedy.outbox = 2000;
  std::vector<GenerationJob> jobs;
  jobs.push_back(std::move(greedy));
  const auto idle = std::move(service.submit(std::move(jobs)).front());
  GenerationJob beside = job(1, 30, 200);
  const std::vector<std::int32_t> expected = alone(beside);
  Client client = submit(std::move(beside));
  gate_.open();
  EXPECT_EQ(client.finish().reason, FinishReason::kLength);
  EXPECT_EQ(client.tokens(), expected);
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  const GenerationUpdate left = idle->take();
  ASSERT_TRUE(left.result);
  EXPECT_EQ(left.result->reason, FinishReason::kCancelled);
  EXPECT_FALSE(left.result->error.empty());
  EXPECT_LT(left.result->times.reply_tokens, 100u);
  EXPECT_LE(left.tokens.size() * sizeof(TokenDetail), 2000u);
  EXPECT_FALSE(idle->take().result) << "a result comes once";
}

TEST_F(ServiceTest, ClientsAreWokenOncePerTake) {
  Service& service = serve(1);
  Client client = submit(job(0, 5, 40));
  gate_.open();
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  EXPECT_EQ(client.rings(), 1u);
  client.finish();
  EXPECT_EQ(client.all().rounds, 40u);
  EXPECT_EQ(client.tokens().size(), 40u);
  ASSERT_TRUE(client.all().prompt);
  EXPECT_EQ(client.all().prompt->done, 5u);
  // Told late, it is told at once.
  std::vector<GenerationJob> jobs;
  jobs.push_back(job(1, 5, 4));
  Client late(std::move(service.submit(std::move(jobs)).front()));
  EXPECT_EQ(late.finish().reason, FinishReason::kLength);
}

TEST_F(ServiceTest, PromptProgressIsTold) {
  serve(1);
  Client client = submit(job(0, 60, 2));
  const auto done = [&](std::uint32_t n) {
    const auto& all = client.take_until([&](const auto& u) { return u.prompt && u.prompt->done >= n; });
    EXPECT_EQ(all.prompt->done, n);
    EXPECT_EQ(all.prompt->total, 60u);
    EXPECT_EQ(all.prompt->cached, 0u);
  };
  done(0);
  for (const std::uint32_t n : {24u, 48u, 60u}) {
    gate_.allow(1);
    done(n);
    if (n == 48) {
      const ServiceStatus::Slot slot = service_->status().slots.at(0);
      EXPECT_TRUE(slot.busy);
      EXPECT_EQ(slot.prompt_tokens, 60u);
      EXPECT_EQ(slot.prompt_done, 48u);
      EXPECT_EQ(service_->status().kv_used, 48u);
    }
  }
  gate_.open();
  client.finish();
  EXPECT_EQ(client.all().rounds, 4u);
}

TEST_F(ServiceTest, ALostDeviceEndsTheServiceAndIsTold) {
  std::promise<std::string> told;
  serve(2, 64, 0, {}, [&](const std::string& why) { told.set_value(why); });
  gate_.lose_at(3);
  std::vector<Client> clients;
  for (std::uint32_t i = 0; i < 3; ++i) clients.push_back(submit(job(i, 10, 20)));  // the third one waits
  gate_.open();
  for (Client& c : clients) {
    const GenerationResult& result = c.finish();
    EXPECT_EQ(result.reason, FinishReason::kFailed);
    EXPECT_NE(result.error.find("the device is lost"), std::string::npos) << result.error;
  }
  auto why = told.get_future();
  ASSERT_EQ(why.wait_for(testing::kPatience), std::future_status::ready);
  EXPECT_EQ(why.get(), "the device is lost: a test");
  EXPECT_TRUE(service_->status().stopping);
  EXPECT_EQ(service_->status().running, 0u);
  EXPECT_EQ(refused(job(5, 10, 2)), 503);
}

TEST_F(ServiceTest, ARoundThatFailsEndsItsRepliesAndTheServiceGoesOn) {
  Service& service = serve(2);
  gate_.fail_at(3);
  std::vector<Client> clients;
  for (std::uint32_t i = 0; i < 2; ++i) clients.push_back(submit(job(i, 10, 20)));
  GenerationJob later = job(5, 12, 20);
  const std::vector<std::int32_t> expected = alone(later);
  Client waiting = submit(std::move(later));
  gate_.open();
  for (Client& c : clients) {
    const GenerationResult& result = c.finish();
    EXPECT_EQ(result.reason, FinishReason::kFailed);
    EXPECT_NE(result.error.find("memory"), std::string::npos) << result.error;
  }
  EXPECT_EQ(waiting.finish().reason, FinishReason::kLength);
  EXPECT_EQ(waiting.tokens(), expected);
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  std::uint32_t kept = 0;
  for (const auto& slot : service.status().slots) kept += slot.kept;
  EXPECT_EQ(kept, 12u + 19) << "what a failed round leaves is not resumed";
}

TEST_F(ServiceTest, DrainingFinishesWhatRunsAndWaits) {
  Service& service = serve(1);
  std::vector<Client> clients;
  for (std::uint32_t i = 0; i < 3; ++i) clients.push_back(submit(job(i, 10, 5)));
  gate_.round(1);
  service.drain();
  EXPECT_EQ(refused(job(9, 10, 5)), 503);
  EXPECT_TRUE(service.status().stopping);
  EXPECT_FALSE(service.wait_idle(std::chrono::milliseconds(1)));
  gate_.open();
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  for (Client& c : clients) EXPECT_EQ(c.finish().reason, FinishReason::kLength);
}

TEST_F(ServiceTest, StoppingEndsEveryReplyWithAReason) {
  Service& service = serve(2);
  std::vector<Client> clients;
  for (std::uint32_t i = 0; i < 6; ++i) clients.push_back(submit(job(i, 10, 900)));
  gate_.round(1);
  std::thread opener([&] {
    eventually([&] { return service.status().stopping; });
    gate_.open();
  });
  service.stop();
  opener.join();
  EXPECT_LE(gate_.rounds(), 2u);
  for (Client& c : clients) {
    EXPECT_EQ(c.finish().reason, FinishReason::kCancelled);
    EXPECT_FALSE(c.all().result->error.empty());
  }
  EXPECT_EQ(refused(job(9, 10, 5)), 503);
  service.stop();  // twice is once
  EXPECT_TRUE(service.wait_idle(std::chrono::milliseconds(0)));
  service_.reset();  // generations may outlive it
  clients.front().generation().cancel();
}

TEST_F(ServiceTest, ManyClientsComeAndGoFromManyThreads) {
  Service& service = serve(3, 8);
  gate_.open();
  std::atomic<int> finished = 0, left = 0, refusals = 0;
  const GenerationJob base = job(1, 40, 12);
  const std::vector<std::int32_t> expected = alone(base);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 6; ++i) {
        std::vector<GenerationJob> jobs(1 + random() % 2, base);
        std::vector<Client> clients;
        try {
          for (auto& g : service.submit(std::move(jobs))) clients.emplace_back(std::move(g));
        } catch (const ApiError& e) {
          if (e.status == 429) ++refusals;
          continue;
        }
        for (Client& c : clients) {
          if (random() % 3 == 0) {
            if (random() % 2 == 0) c.take_until([](const auto& u) { return u.tokens.size() > 3; });
            c.leave();
            ++left;
          } else {
            EXPECT_EQ(c.finish().reason, FinishReason::kLength);
            EXPECT_EQ(c.tokens(), expected);
            ++finished;
          }
        }
        service.status();
        if (random() % 4 == 0) service.erase_slot(random() % 3);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(service.wait_idle(testing::kPatience));
  EXPECT_GT(finished.load(), 0);
  EXPECT_GT(left.load(), 0);
  const ServiceStatus status = service.status();
  EXPECT_EQ(status.queued + status.running, 0u);
  for (const auto& slot : status.slots) EXPECT_FALSE(slot.busy);
}

TEST_F(ServiceTest, LogProbabilitiesSumToOne) {
  serve(1);
  gate_.open();
  GenerationJob j = job(3, 20, 8);
  j.request.logprobs = session_->model().geometry().vocab;
  Client client = submit(std::move(j));
  client.finish();
  ASSERT_EQ(client.all().tokens.size(), 8u);
  for (const TokenDetail& t : client.all().tokens) {
    double sum = 0;
    bool listed = false;
    for (const auto& a : t.top) {
      sum += std::exp(a.logprob);
      listed |= a.token == t.token && a.logprob == t.logprob && a.bytes == t.bytes;
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_TRUE(listed);
    EXPECT_EQ(t.bytes, session_->tokenizer().decode_bytes(t.token));
  }
}

TEST_F(ServiceTest, TheTimeOfAReplyEndsIt) {
  serve(1);
  gate_.open();
  GenerationJob j = job(3, 20, 500);
  j.time_limit = std::chrono::milliseconds(0);
  Client client = submit(std::move(j));
  EXPECT_EQ(client.finish().reason, FinishReason::kLength);
  EXPECT_EQ(client.all().result->reply.finish_reason, "length");
  EXPECT_EQ(client.tokens().size(), 1u);
}

// The next prompt of a conversation goes to the slot that holds its beginning; a new conversation to the one
// that has not been used for the longest time.
TEST_F(ServiceTest, PromptsFindTheirSlot) {
  Service& service = serve(2);
  gate_.open();
  const auto ask = [&](const GenerationJob& j) {
    Client c = submit(j);
    c.finish();
    EXPECT_EQ(c.tokens(), alone(j));
    service.wait_idle(testing::kPatience);
    return c.all().result->times.reused;
  };
  const auto longer = [](GenerationJob j, std::int32_t token) {
    for (int i = 0; i < 9; ++i) j.request.prompt.push_back(token);
    return j;
  };
  const GenerationJob a = job(1, 90, 100), b = job(2, 50, 6), c = job(3, 40, 6);
  EXPECT_EQ(ask(a), 0u);
  EXPECT_EQ(ask(b), 0u);
  EXPECT_EQ(ask(longer(b, 401)), 50u);  // not in the place of a, which was used before
  EXPECT_EQ(ask(longer(a, 400)), 90u);  // though its reply was three windows long
  EXPECT_EQ(ask(longer(b, 401)), 58u);  // the same again: all but the last token
  EXPECT_EQ(ask(c), 0u);                // in the place of a
  EXPECT_EQ(ask(longer(b, 402)), 50u);
  EXPECT_EQ(ask(longer(c, 403)), 40u);
  EXPECT_LE(ask(longer(a, 400)), 1u);  // all prompts share their first token

  GenerationJob afresh = longer(b, 404);
  afresh.reuse_prompt = false;
  EXPECT_EQ(ask(afresh), 0u);
  std::multiset<std::uint32_t> kept;
  for (const auto& slot : service.status().slots) kept.insert(slot.kept);
  EXPECT_TRUE(kept.contains(0)) << "nothing is kept of it";
  EXPECT_EQ(service.status().kv_used, *kept.rbegin());

  const std::size_t full = service.status().slots[0].kept > 0 ? 0 : 1;
  EXPECT_EQ(service.erase_slot(full), *kept.rbegin());
  EXPECT_EQ(service.status().kv_used, 0u);
  EXPECT_EQ(service.erase_slot(full), 0u);
  EXPECT_FALSE(service.erase_slot(2));
}

// Five conversations take turns in one slot: each finds the end of its last request, and the reply where the
// history holds it.
TEST_F(ServiceTest, KeptPromptsServeMoreConversationsThanThereAreSlots) {
  Service& service = serve(1, 64, 64 << 20);
  gate_.open();
  std::vector<GenerationJob> jobs;
  for (std::uint32_t c = 0; c < 5; ++c) jobs.push_back(job(c, 40 + 30 * c, 20));
  std::vector<std::uint32_t> expected(5, 0);
  for (int turn = 0; turn < 3; ++turn) {
    for (std::uint32_t c = 0; c < 5; ++c) {
      GenerationJob& j = jobs[c];
      Client client = submit(j);
      client.finish();
      const std::vector<std::int32_t> reply = client.tokens();
      EXPECT_EQ(reply, alone(j));
      EXPECT_GE(client.all().result->times.reused, expected[c])
          << "turn " << turn << " of conversation " << c;
      service.wait_idle(testing::kPatience);
      expected[c] = static_cast<std::uint32_t>(j.request.prompt.size());
      if (c % 2 == 0) {  // the history holds the reply
        j.request.prompt.insert(j.request.prompt.end(), reply.begin(), reply.end());
        expected[c] += static_cast<std::uint32_t>(reply.size()) - 1;
      }
      for (int i = 0; i < 9; ++i) j.request.prompt.push_back(600 + turn + i);
    }
  }
  const ServiceStatus status = service.status();
  EXPECT_GE(status.prompt_cache.restored, 8u);
  EXPECT_GT(status.prompt_cache.bytes, 0u);
  EXPECT_LE(status.prompt_cache.bytes, status.prompt_cache.budget);

  GenerationJob secret = job(9, 50, 5);
  secret.reuse_prompt = false;
  const std::uint64_t states = status.prompt_cache.states;
  Client client = submit(secret);
  client.finish();
  service.wait_idle(testing::kPatience);
  EXPECT_EQ(service.status().prompt_cache.states, states) << "cache_prompt: false is not kept";
  // The slot's cache still holds what nobody may know of; a kept prompt takes its place.
  jobs[1].request.prompt.push_back(700);
  Client next = submit(jobs[1]);
  EXPECT_EQ(next.finish().reason, FinishReason::kLength) << next.all().result->error;
  EXPECT_GE(next.all().result->times.reused, expected[1]);
  EXPECT_EQ(next.tokens(), alone(jobs[1]));
}

// Several replies to one request, or requests that go on from one beginning, have it read once; who asks
// something else overtakes them.
TEST_F(ServiceTest, APromptThatIsBeingReadIsNotReadAgain) {
  Service& service = serve(4, 64, 64 << 20);
  std::vector<GenerationJob> jobs(4, job(1, 200, 12));
  jobs[1].request.sampling.seed = 77;
  for (int i = 0; i < 30; ++i) jobs[2].request.prompt.push_back(600 + i);
  jobs[3] = job(5, 60, 12);
  const std::vector<GenerationJob> asked = jobs;
  auto generations = service.submit(std::move(jobs));
  EXPECT_EQ(gate_.round(1).size(), 2u);
  EXPECT_EQ(service.status().queued, 2u);
  gate_.open();
  std::vector<std::unique_ptr<Client>> clients;
  for (auto& generation : generations) clients.push_back(std::make_unique<Client>(std::move(generation)));
  const std::vector<std::uint32_t> reused = {0, 199, 200, 0};
  for (std::size_t i = 0; i < clients.size(); ++i) {
    EXPECT_EQ(clients[i]->finish().times.reused, reused[i]) << i;
    EXPECT_EQ(clients[i]->tokens(), alone(asked[i])) << i;
  }
}

TEST_F(ServiceTest, WhoWaitedForAPromptThatIsGivenUpReadsIt) {
  Service& service = serve(2, 64, 64 << 20);
  std::vector<GenerationJob> jobs(2, job(1, 200, 12));
  const GenerationJob asked = jobs[1];
  auto generations = service.submit(std::move(jobs));
  gate_.round(1);
  EXPECT_EQ(service.status().queued, 1u);
  generations[0].reset();
  gate_.open();
  Client second(std::move(generations[1]));
  EXPECT_LT(second.finish().times.reused, 100u);
  EXPECT_EQ(second.tokens(), alone(asked));
}

// Prompts that were kept on disk by a service before; reading them back waits until disk_.open().
class KeptOnDisk : public ServiceTest {
 protected:
  static constexpr std::uint64_t kMemory = 64 << 20;

  void SetUp() override {
    ServiceTest::SetUp();
    if (IsSkipped()) return;
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("gem-service-disk-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    SessionOptions options;
    options.cache_folder = folder_.string();
    serve(1, 64, kMemory, options);
    gate_.open();
    submit(job(1, 300, 1)).finish();
    stop();
    options.before_cache_load = [this] {
      ++loads_;
      disk_.wait(false);
    };
    serve(2, 64, kMemory, options);
  }
  void TearDown() override {
    open_disk();
    stop();
    std::filesystem::remove_all(folder_);
    ServiceTest::TearDown();
  }
  void stop() {
    service_.reset();
    session_.reset();  // writes what is not written yet
  }
  void open_disk() {
    disk_ = true;
    disk_.notify_all();
  }
  // It begins with what was kept.
  GenerationJob next() const { return job(1, 320, 8); }

  std::filesystem::path folder_;
  std::atomic<bool> disk_ = false;
  std::atomic<int> loads_ = 0;
};

TEST_F(KeptOnDisk, OtherRepliesGoOnWhileItIsRead) {
  const GenerationJob waiting = next();
  Client kept = submit(waiting);
  Client same = submit(waiting);  // both slots wait for one file
  ASSERT_TRUE(eventually([&] { return loads_ == 1; }));
  ASSERT_TRUE(eventually([&] { return service_->status().running == 2; }));
  EXPECT_TRUE(same.all().tokens.empty());
  same.leave();  // its slot is free, though nothing else goes on
  ASSERT_TRUE(eventually([&] { return service_->status().running == 1; }));
  const GenerationJob other = job(7, 20, 30);
  Client running = submit(other);
  EXPECT_EQ(running.finish().reason, FinishReason::kLength);
  EXPECT_EQ(running.tokens(), alone(other));
  EXPECT_TRUE(kept.all().tokens.empty());
  EXPECT_EQ(service_->status().running, 1u);
  open_disk();
  EXPECT_EQ(kept.finish().times.reused, 300u);
  EXPECT_EQ(kept.tokens(), alone(waiting));
  EXPECT_EQ(loads_, 1);
}

TEST_F(KeptOnDisk, CancelAndStopDoNotWaitForIt) {
  Client gone = submit(next());
  Client stopped = submit(next());
  ASSERT_TRUE(eventually([&] { return service_->status().running == 2; }));
  Client queued = submit(job(3, 20, 2));
  gone.generation().cancel();
  EXPECT_EQ(gone.finish().reason, FinishReason::kCancelled);
  EXPECT_EQ(queued.finish().reason, FinishReason::kLength) << "the slot is another's";
  service_->stop();
  EXPECT_EQ(stopped.finish().reason, FinishReason::kCancelled);
}

TEST_F(KeptOnDisk, AFileThatProvesDamagedIsReadAfreshAsAPrompt) {
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() != ".gemstate") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-100, std::ios::end);
    file.put('x').put('y').put('z');
  }
  open_disk();
  const GenerationJob j = next();
  Client client = submit(j);
  EXPECT_EQ(client.finish().times.reused, 0u);
  EXPECT_EQ(client.tokens(), alone(j));
  EXPECT_EQ(service_->status().prompt_cache.disk.rejected, 1u);
}

// Nobody waits for what will not be kept, or gives little.
TEST_F(ServiceTest, NobodyWaitsInVain) {
  Service& service = serve(4, 64, 64 << 20);
  std::vector<GenerationJob> jobs(4, job(1, 200, 12));
  jobs[0].reuse_prompt = false;  // is not kept
  jobs[1] = job(2, 200, 12);
  jobs[2] = jobs[1];
  jobs[2].request.prompt.resize(100);  // cannot resume in the middle of the other's
  jobs[3] = jobs[1];
  jobs[3].reuse_prompt = false;  // wants everything computed
  auto generations = service.submit(std::move(jobs));
  EXPECT_EQ(gate_.round(1).size(), 4u);
  gate_.open();
}

TEST_F(ServiceTest, ABusySlotIsNotErased) {
  Service& service = serve(1);
  Client client = submit(job(0, 30, 3));
  gate_.round(1);
  EXPECT_FALSE(service.erase_slot(0));
  gate_.open();
  EXPECT_EQ(client.finish().reason, FinishReason::kLength);
}

// A short prompt that shares little with a long kept state leaves it alone while a slot is free.
TEST_F(ServiceTest, AKeptStateIsNotGivenUpForLittle) {
  Service& service = serve(2);
  gate_.open();
  const GenerationJob first = job(1, 40, 4);
  GenerationJob other = job(2, 40, 4);
  std::copy_n(first.request.prompt.begin(), 10, other.request.prompt.begin());
  Client a = submit(first);
  a.finish();
  service.wait_idle(testing::kPatience);
  Client b = submit(other);
  b.finish();
  service.wait_idle(testing::kPatience);
  GenerationJob next = first;
  next.request.prompt.push_back(400);
  Client c = submit(next);
  EXPECT_EQ(c.finish().times.reused, 40u);
}

TEST(PromptProgress, LongPromptsAreLoggedEvery4096Tokens) {
  PromptProgress progress;
  StreamTimes times;
  std::vector<std::string> lines;
  const auto read = [&](PromptProgress& p, std::uint32_t total, std::uint32_t reused) {
    times = {.reused = reused};
    lines.clear();
    for (std::uint32_t done = reused; done < total;) {
      const std::uint32_t rows = std::min(256u, total - done);
      done += rows;
      times.prompt_tokens += rows;
      times.prompt_seconds += rows / 512.0;
      if (const auto line = p.line(done, total, times)) lines.push_back(*line);
    }
  };
  read(progress, 10000, 0);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "prompt 4096 of 10000 tokens (0 from the cache), 512.0 tokens/s, 12 s left");
  EXPECT_EQ(lines[1], "prompt 8192 of 10000 tokens (0 from the cache), 512.0 tokens/s, 4 s left");
  PromptProgress resumed;
  read(resumed, 10000, 5000);
  EXPECT_EQ(lines.size(), 1u);
  PromptProgress small;
  read(small, 4095, 0);
  EXPECT_TRUE(lines.empty());
}

}  // namespace
}  // namespace gem::server
