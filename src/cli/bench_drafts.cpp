#include "cli/bench_drafts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace gem::cli {
namespace {

struct Prompt {
  std::string task;
  std::vector<std::int32_t> tokens;
};

std::vector<Prompt> read_prompts(const std::string& path, const Session& session) {
  std::vector<Prompt> prompts;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains("prompt") || !j["prompt"].is_string()) {
      fail(ErrorCode::kUsage, "{}: line {} is not a JSON object with a prompt", path, prompts.size() + 1);
    }
    const std::string task = j.contains("task") && j["task"].is_string() ? j["task"].get<std::string>() : "";
    std::vector<std::int32_t> tokens = session.tokenizer().encode(j["prompt"].get<std::string>(), true);
    session.tokenizer().ensure_bos(tokens);
    prompts.push_back({task, std::move(tokens)});
  }
  if (prompts.empty()) fail(ErrorCode::kUsage, "{} holds no prompt", path);
  return prompts;
}

class Reply final : public StreamSink {
 public:
  void on_prompt(std::uint32_t, std::uint32_t) override {}
  bool on_token(const DrawnToken& drawn) override {
    tokens.push_back(drawn.token);
    return true;
  }
  void on_finish(FinishReason) override {}
  std::vector<std::int32_t> tokens;
};

struct Sums {
  std::uint64_t prompts = 0, tokens = 0, rounds = 0;  // rounds: of drafted decoding
  double plain_seconds = 0, drafted_seconds = 0;
  DraftCounts counts;

  void add(const Sums& other) {
    prompts += other.prompts;
    tokens += other.tokens;
    rounds += other.rounds;
    plain_seconds += other.plain_seconds;
    drafted_seconds += other.drafted_seconds;
    counts.add(other.counts);
  }
  // The first token of a reply comes with its prompt.
  double decoded() const { return static_cast<double>(tokens - prompts); }
  double tokens_a_round() const { return rounds > 0 ? decoded() / static_cast<double>(rounds) : 0; }
  // Rounds that drafted as much as they could: what a long reply has.
  double tokens_a_full_round(std::size_t depth) const {
    double reach = 1, sum = 1;
    for (std::size_t i = 0; i < depth; ++i) sum += reach *= kept(i).value_or(0);
    return sum;
  }
  // Of the drafts at a depth whose predecessors were kept.
  std::optional<double> kept(std::size_t depth) const {
    const auto judged =
        std::min(counts.drafted[depth], depth == 0 ? ~std::uint64_t{0} : counts.accepted[depth - 1]);
    if (judged == 0) return std::nullopt;
    return static_cast<double>(counts.accepted[depth]) / static_cast<double>(judged);
  }
  double plain_rate() const { return plain_seconds > 0 ? decoded() / plain_seconds : 0; }
  double drafted_rate() const { return drafted_seconds > 0 ? decoded() / drafted_seconds : 0; }
};

// One reply; its decode rounds and drafts are added to `sums`.
Reply run_once(Session& session, const GenerationRequest& request, Sums& sums) {
  Reply reply;
  Engine& engine = session.engine();
  const auto stream = engine.open(request, reply);
  bool more = true;
  while (more) {
    const bool decoding = !reply.tokens.empty();
    more = engine.step();
    if (decoding && request.draft) {
      ++sums.rounds;
      sums.counts.add(engine.last_round().drafts);
    }
  }
  (request.draft ? sums.drafted_seconds : sums.plain_seconds) += stream->times().decode_seconds;
  return reply;
}

std::size_t depths_of(const Sums& all) {
  std::size_t depths = 0;
  while (depths < DraftCounts::kDepths && all.counts.drafted[depths] > 0) ++depths;
  return depths;
}

nlohmann::ordered_json to_json(const Sums& s, std::size_t depths) {
  nlohmann::ordered_json kept = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < depths; ++i) {
    const auto share = s.kept(i);
    kept.push_back(share ? nlohmann::ordered_json(*share) : nlohmann::ordered_json());
  }
  return {{"prompts", s.prompts},
          {"tokens", s.tokens},
          {"rounds", s.rounds},
          {"drafted", s.counts.all_drafted()},
          {"accepted", s.counts.all_accepted()},
          {"accepted_given_earlier", kept},
          {"tokens_per_round", s.tokens_a_round()},
          {"tokens_per_full_round", s.tokens_a_full_round(depths)},
          {"plain_tokens_per_second", s.plain_rate()},
          {"tokens_per_second", s.drafted_rate()}};
}

}  // namespace

void bench_drafts(const ModelOptions& model, const DraftBenchOptions& options) {
  SessionOptions session_options = model.session();
  session_options.drafts.adaptive = !options.fixed;
  const std::unique_ptr<Session> session = Session::open(session_options);
  if (session->engine().speculation() == nullptr)
    fail(ErrorCode::kUsage, "nothing drafts: {}", session->drafting());
  const std::vector<Prompt> prompts = read_prompts(options.prompts, *session);
  std::map<std::string, Sums> tasks;
  SamplingParams sampling = session->default_sampling();
  sampling.temperature = options.temperature;
  bool drafted_first = false;
  for (const Prompt& prompt : prompts) {
    GenerationRequest request = session->request(prompt.tokens, sampling);
    request.max_tokens = options.max_tokens;
    if (request.prompt.size() >= session->memory().context) continue;
    Sums sums;
    std::vector<std::int32_t> replies[2];
    // Either goes first in turn, so that neither always finds warm caches.
    for (const bool draft : {drafted_first, !drafted_first}) {
      request.draft = draft;
      replies[draft ? 1 : 0] = run_once(*session, request, sums).tokens;
    }
    drafted_first = !drafted_first;
    if (replies[0] != replies[1] && model.drafts.sampling == SpecSampling::kKeyed)
      fail(ErrorCode::kFailed, "a drafted reply differs from the plain one (task {:?})", prompt.task);
    sums.prompts = 1;
    sums.tokens = replies[1].size();
    tasks[prompt.task].add(sums);
  }
  Sums all;
  for (const auto& [task, sums] : tasks) all.add(sums);
  const std::size_t depths = depths_of(all);
  if (options.json) {
    nlohmann::ordered_json j = {{"model", model.path()},
                                {"backend", session->backend().description()},
                                {"drafter", session->drafting()},
                                {"temperature", options.temperature},
                                {"all", to_json(all, depths)}};
    for (const auto& [task, sums] : tasks) j["tasks"][task] = to_json(sums, depths);
    fmt::print("{}\n", j.dump(2));
    return;
  }
  fmt::print("{}, {}\ndrafts: {}\n", session->model().profile().title, session->backend().description(),
             session->drafting());
  fmt::print("{:<22} {:>7} {:>7} {:>7} {:>9} {:>9} {:>6}  accepted at each depth, given the earlier\n",
             "task", "prompts", "tokens", "a round", "plain t/s", "draft t/s", "gain");
  const auto line = [&](const std::string& task, const Sums& s) {
    std::string shares;
    for (std::size_t i = 0; i < depths; ++i) {
      const auto share = s.kept(i);
      shares += share ? fmt::format(" {:.3f}", *share) : "     -";
    }
    fmt::print("{:<22} {:>7} {:>7} {:>7.2f} {:>9.1f} {:>9.1f} {:>6.2f} {}\n", task.substr(0, 22), s.prompts,
               s.tokens, s.tokens_a_round(), s.plain_rate(), s.drafted_rate(),
               s.plain_rate() > 0 ? s.drafted_rate() / s.plain_rate() : 0, shares);
  };
  for (const auto& [task, sums] : tasks) line(task, sums);
  line("all", all);
  fmt::print("tokens a round of {} drafts: {:.2f}\n", depths, all.tokens_a_full_round(depths));
}

}  // namespace gem::cli
