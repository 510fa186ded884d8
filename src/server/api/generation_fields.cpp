// The fields by which a reply is drawn: read, range-checked, and refused where this server would have to
// ignore what changes the output.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <random>
#include <string_view>
#include <utility>

#include "server/api/chat_request.h"
#include "server/api/json_fields.h"
#include "text/tokenizer.h"

namespace gem::server {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kIntMax = std::numeric_limits<std::int64_t>::max();
constexpr std::uint32_t kUint32Max = std::numeric_limits<std::uint32_t>::max();

// Every token is compared with every stop string.
constexpr std::size_t kMaxStops = 128;
constexpr std::size_t kMaxStopBytes = 1024;
// A token's alternatives are kept until the client has taken them.
constexpr std::int64_t kMaxLogprobs = 100;
// llama-server's window of its penalties where a request sets none.
constexpr std::uint32_t kPenaltyWindow = 64;

// Samplers and settings of other servers that are not built here: each is taken at the values at which it
// does nothing.
struct NeutralNumber {
  std::string_view field;
  double low, high;  // the neutral values
};
constexpr std::array kNeutralNumbers = std::to_array<NeutralNumber>({
    {"typical_p", 1, kInfinity},
    {"top_n_sigma", -kInfinity, 0},
    {"xtc_probability", -kInfinity, 0},
    {"dynatemp_range", -kInfinity, 0},
    {"dry_multiplier", 0, 0},
    {"mirostat", 0, 0},
    {"adaptive_target", -kInfinity, -1e-9},
    {"min_keep", 0, 1},
    {"n_indent", 0, 0},
    {"min_tokens", 0, 0},
    {"length_penalty", 1, 1},
});
constexpr std::array<std::string_view, 4> kNeutralWhenFalse = {"post_sampling_probs", "use_beam_search",
                                                               "include_stop_str_in_output", "echo"};
// Neutral when absent or empty ("", [], {}).
constexpr std::array<std::string_view, 5> kNeutralWhenEmpty = {"lora", "stop_token_ids", "bad_words",
                                                               "suffix", "chat_template"};
// Anything here asks for constrained output.
constexpr std::array<std::string_view, 8> kConstraints = {
    "grammar",       "json_schema",    "guided_json",        "guided_regex",
    "guided_choice", "guided_grammar", "structured_outputs", "structural_tag"};

bool is_empty(const JsonValue& value) {
  return (value.is_string() && value.text.empty()) || (value.is_array() && value.items.empty()) ||
         (value.is_object() && value.members.empty());
}

std::string_view neutral_text(const NeutralNumber& rule) {
  if (rule.low == rule.high) return rule.low == 0 ? "0" : "1";
  if (rule.low == 1) return "1";
  return rule.high > 0 ? "0" : rule.high == 0 ? "0" : "-1";
}

void refuse_what_would_be_ignored(const FieldReader& fields) {
  for (const NeutralNumber& rule : kNeutralNumbers) {
    const std::optional<double> value = fields.number(rule.field, -kInfinity, kInfinity);
    if (value && (*value < rule.low || *value > rule.high)) {
      fields.refuse(
          rule.field,
          fmt::format("not supported, and would change the output; leave it out or at {} (found {})",
                      neutral_text(rule), describe(*fields.find(rule.field))));
    }
  }
  for (const std::string_view field : kNeutralWhenFalse) {
    if (fields.boolean(field).value_or(false)) fields.refuse(field, "not supported; leave it out or false");
  }
  for (const std::string_view field : kNeutralWhenEmpty) {
    const JsonValue* value = fields.find(field);
    if (value != nullptr && !is_empty(*value))
      fields.refuse(field, fmt::format("not supported; leave it out (found {})", describe(*value)));
  }
  for (const std::string_view field : kConstraints) {
    const JsonValue* value = fields.find(field);
    if (value != nullptr && !(value->is_string() && value->text.empty()))
      fields.refuse(field, "not supported yet: needs constrained decoding");
  }
  if (const auto format = fields.nested("response_format")) {
    const std::optional<std::string> type = format->text("type");
    if (!type) format->refuse("type", "missing");
    if (*type == "json_object" || *type == "json_schema") {
      fields.refuse("response_format",
                    fmt::format("\"{}\" is not supported yet: needs constrained decoding", *type));
    }
    if (*type != "text") {
      format->refuse("type", fmt::format("expected \"text\", \"json_object\" or \"json_schema\", found {}",
                                         describe(*format->find("type"))));
    }
  }
}

// Settings that only touch how the work is done: checked, then left alone.
void check_idle_fields(const FieldReader& fields) {
  fields.integer("id_slot", -1, kIntMax);
  fields.integer("n_keep", -1, kIntMax);
  fields.integer("n_discard", 0, kIntMax);
  fields.number("sse_ping_interval", -1, kInfinity);
}

std::uint32_t max_tokens(const FieldReader& fields) {
  // The first one that is there holds, as in llama-server; all must be well formed.
  std::optional<std::int64_t> most;
  std::string_view field;
  for (const std::string_view name : {"n_predict", "max_completion_tokens", "max_tokens"}) {
    const std::optional<std::int64_t> value = fields.integer(name, -1, kIntMax);
    if (value && !most) {
      most = value;
      field = name;
    }
  }
  if (!most || *most == -1) return 0;
  if (*most == 0)
    fields.refuse(field, "a reply has at least 1 token; -1 lets it run until the context ends, found 0");
  return static_cast<std::uint32_t>(std::min<std::int64_t>(*most, kUint32Max));
}

std::vector<std::string> stops(const FieldReader& fields) {
  std::vector<std::string> result;
  const JsonValue* value = fields.find("stop");
  if (value == nullptr) return result;
  const auto add = [&](const JsonValue& stop, const std::string& place) {
    if (!stop.is_string()) refuse_field(place, fmt::format("expected a string, found {}", describe(stop)));
    if (stop.text.size() > kMaxStopBytes) {
      refuse_field(place,
                   fmt::format("{} bytes long, at most {} are looked for", stop.text.size(), kMaxStopBytes));
    }
    if (!stop.text.empty()) result.push_back(stop.text);  // an empty one would end every reply at once
  };
  if (!value->is_array()) {
    if (!value->is_string())
      fields.refuse("stop", fmt::format("expected a string or an array, found {}", describe(*value)));
    add(*value, fields.path("stop"));
    return result;
  }
  if (value->items.size() > kMaxStops)
    fields.refuse("stop", fmt::format("{} strings, at most {} are taken", value->items.size(), kMaxStops));
  for (std::size_t i = 0; i < value->items.size(); ++i)
    add(value->items[i], fmt::format("{}[{}]", fields.path("stop"), i));
  return result;
}

// {"15": -100, "text": 5} or [[15, -100], ["text", false]]; the entries of one token add up.
class LogitBias {
 public:
  LogitBias(const Tokenizer& tokenizer, std::uint32_t vocab) : tokenizer_(tokenizer), vocab_(vocab) {}

  std::vector<std::pair<std::int32_t, float>> read(const FieldReader& fields) {
    const JsonValue* value = fields.find("logit_bias");
    if (value == nullptr) return {};
    const std::string path = fields.path("logit_bias");
    if (value->is_object()) {
      for (const JsonMember& member : value->members) {
        const std::string place = fmt::format("{}.{}", path, to_json_text(JsonValue::string(member.key)));
        const float bias = bias_of(member.value, place);
        const bool digits = !member.key.empty() && member.key.size() <= 10 &&
                            member.key.find_first_not_of("0123456789") == std::string::npos;
        if (digits) {
          add_id(std::stoll(member.key), bias, place);
        } else {
          add_text(member.key, bias, place);
        }
      }
    } else if (value->is_array()) {
      for (std::size_t i = 0; i < value->items.size(); ++i) {
        const JsonValue& pair = value->items[i];
        const std::string place = fmt::format("{}[{}]", path, i);
        if (!pair.is_array() || pair.items.size() != 2)
          refuse_field(place, fmt::format("expected [token, bias], found {}", describe(pair)));
        const float bias = bias_of(pair.items[1], place);
        if (pair.items[0].is_string()) {
          add_text(pair.items[0].text, bias, place);
        } else if (const auto id = as_integer(pair.items[0])) {
          add_id(*id, bias, place);
        } else {
          refuse_field(place,
                       fmt::format("expected a token id or a text, found {}", describe(pair.items[0])));
        }
      }
    } else {
      refuse_field(path, fmt::format("expected an object or an array of pairs, found {}", describe(*value)));
    }
    return {biases_.begin(), biases_.end()};
  }

 private:
  static float bias_of(const JsonValue& value, const std::string& place) {
    if (value.kind == JsonValue::Kind::kBoolean && !value.boolean)
      return -std::numeric_limits<float>::infinity();
    const std::optional<double> bias = as_number(value);
    if (!bias || *bias < -100 || *bias > 100) {
      refuse_field(place,
                   fmt::format("expected a bias from -100 to 100, or false to forbid the token, found {}",
                               describe(value)));
    }
    return static_cast<float>(*bias);
  }
  void add_id(std::int64_t id, float bias, const std::string& place) {
    if (id < 0 || id >= static_cast<std::int64_t>(vocab_))
      refuse_field(place, fmt::format("expected a token id from 0 to {}, found {}", vocab_ - 1, id));
    biases_[static_cast<std::int32_t>(id)] += bias;
  }
  void add_text(const std::string& text, float bias, const std::string& place) {
    const std::vector<std::int32_t> ids = tokenizer_.encode(text);
    if (ids.empty()) refuse_field(place, "expected a token id or a text, found \"\"");
    for (const std::int32_t id : ids) biases_[id] += bias;
  }

  const Tokenizer& tokenizer_;
  std::uint32_t vocab_;
  std::map<std::int32_t, float> biases_;
};

void read_penalties(const FieldReader& fields, SamplingParams& p) {
  p.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(p.presence_penalty);
  p.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(p.frequency_penalty);
  // llama-server's name, with its window; and vLLM's, which looks at everything.
  const std::optional<double> repeat = fields.number("repeat_penalty", 0.01, 100);
  const std::optional<double> repetition = fields.number("repetition_penalty", 0.01, 100);
  p.repetition_penalty = repeat ? *repeat : repetition.value_or(p.repetition_penalty);
  if (repeat && *repeat != 1.0) p.penalty_window = kPenaltyWindow;
  const std::optional<std::int64_t> window = fields.integer("repeat_last_n", -1, kIntMax);
  if (!window) return;
  if (*window == 0) {  // looks at nothing
    p.repetition_penalty = 1.0;
    p.presence_penalty = p.frequency_penalty = 0.0;
    p.penalty_window = 0;
  } else {
    p.penalty_window =
        *window == -1 ? kUint32Max : static_cast<std::uint32_t>(std::min<std::int64_t>(*window, kUint32Max));
  }
}

// The names that a `samplers` list may hold; the ones that are refused unless neutral count for nothing.
// Ours in the order in which they work here.
enum class Step { kPenalties, kTemperature, kTopK, kTopP, kMinP, kNothing };
struct SamplerName {
  std::string_view name;
  char letter;
  Step step;
};
constexpr std::array kSamplerNames = std::to_array<SamplerName>({
    {"penalties", 'e', Step::kPenalties},
    {"temperature", 't', Step::kTemperature},
    {"temp", 't', Step::kTemperature},
    {"top_k", 'k', Step::kTopK},
    {"top_p", 'p', Step::kTopP},
    {"min_p", 'm', Step::kMinP},
    {"dry", 'd', Step::kNothing},
    {"top_n_sigma", 's', Step::kNothing},
    {"typ_p", 'y', Step::kNothing},
    {"typical_p", 'y', Step::kNothing},
    {"xtc", 'x', Step::kNothing},
    {"adaptive_p", 'a', Step::kNothing},
});

// Whether a step does anything with these parameters.
bool works(Step step, const SamplingParams& p) {
  const bool greedy = p.temperature == 0;
  switch (step) {
    case Step::kPenalties:
      return p.repetition_penalty != 1.0 || p.presence_penalty != 0 || p.frequency_penalty != 0;
    case Step::kTemperature:
      return p.temperature != 1.0;
    case Step::kTopK:
      return !greedy && p.top_k != 0;
    case Step::kTopP:
      return !greedy && p.top_p < 1;
    case Step::kMinP:
      return !greedy && p.min_p > 0;
    case Step::kNothing:
      break;
  }
  return false;
}

// A list is taken when it comes to the same as our own order.
void check_samplers(const FieldReader& fields, const SamplingParams& p) {
  const JsonValue* value = fields.find("samplers");
  if (value == nullptr) return;
  std::vector<Step> steps;
  const auto add = [&](const auto& matches, const JsonValue& found) {
    const auto* name = std::find_if(kSamplerNames.begin(), kSamplerNames.end(), matches);
    if (name == kSamplerNames.end())
      fields.refuse("samplers", fmt::format("no sampler is called {}", describe(found)));
    if (works(name->step, p)) steps.push_back(name->step);
  };
  if (value->is_string()) {
    for (const char c : value->text) {
      add([&](const SamplerName& n) { return n.letter == c; },
          JsonValue::string(static_cast<unsigned char>(c) < 0x80 ? std::string_view(&c, 1) : "?"));
    }
  } else if (value->is_array()) {
    for (const JsonValue& item : value->items)
      add([&](const SamplerName& n) { return item.is_string() && item.text == n.name; }, item);
  } else {
    fields.refuse("samplers", fmt::format("expected an array of names, found {}", describe(*value)));
  }
  std::vector<Step> ours;
  for (const Step step : {Step::kPenalties, Step::kTemperature, Step::kTopK, Step::kTopP, Step::kMinP}) {
    if (works(step, p)) ours.push_back(step);
  }
  if (steps != ours) {
    fields.refuse("samplers",
                  "the order here is penalties, temperature, top_k, top_p, min_p, and another one would "
                  "change the output; leave the field out");
  }
}

// logprobs: true with top_logprobs (chat), a number (completions); n_probs (native).
std::optional<std::uint32_t> logprobs(const FieldReader& fields) {
  const std::optional<std::int64_t> top = fields.integer("top_logprobs", 0, 20);
  const std::optional<std::int64_t> native = fields.integer("n_probs", 0, kMaxLogprobs);
  std::optional<std::uint32_t> wanted;
  if (native && *native > 0) wanted = static_cast<std::uint32_t>(*native);
  const JsonValue* value = fields.find("logprobs");
  if (value != nullptr && value->kind == JsonValue::Kind::kBoolean) {
    if (value->boolean) wanted = static_cast<std::uint32_t>(top.value_or(0));
  } else if (value != nullptr) {
    if (value->kind != JsonValue::Kind::kNumber)
      fields.refuse("logprobs", fmt::format("expected true, false or a number, found {}", describe(*value)));
    wanted = static_cast<std::uint32_t>(*fields.integer("logprobs", 0, kMaxLogprobs));
  }
  if (top && *top > 0 && !wanted) fields.refuse("top_logprobs", "needs logprobs to be true");
  return wanted;
}

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace

GenerationFields parse_generation_fields(const JsonValue& body, const RequestDefaults& defaults,
                                         const Tokenizer& tokenizer) {
  const FieldReader fields(body);
  GenerationFields g;
  SamplingParams& p = g.sampling = defaults.sampling;
  refuse_what_would_be_ignored(fields);
  check_idle_fields(fields);

  if (const auto t = fields.number("temperature", -kInfinity, 100)) p.temperature = std::max(*t, 0.0);
  if (const auto k = fields.integer("top_k", std::numeric_limits<std::int64_t>::min(), kIntMax))
    p.top_k = *k <= 0 ? 0 : static_cast<std::uint32_t>(std::min<std::int64_t>(*k, kUint32Max));
  p.top_p = fields.number("top_p", 0, 1).value_or(p.top_p);
  p.min_p = fields.number("min_p", 0, 1).value_or(p.min_p);
  read_penalties(fields, p);
  p.logit_bias = LogitBias(tokenizer, defaults.vocab).read(fields);
  const std::optional<std::uint64_t> seed = fields.bits64("seed");
  p.seed = seed && *seed != ~std::uint64_t{0} ? *seed : random_seed();
  check_samplers(fields, p);

  g.max_tokens = max_tokens(fields);
  if (const auto n = fields.integer("n", 1, std::max(defaults.max_n, 1u)))
    g.n = static_cast<std::uint32_t>(*n);
  g.stops = stops(fields);
  g.logprobs = logprobs(fields);
  g.return_tokens = fields.boolean("return_tokens").value_or(false);
  g.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  g.reuse_prompt = fields.boolean("cache_prompt").value_or(true);
  g.draft = fields.boolean("draft").value_or(true);
  // 0 and below: no limit. A day is as good as none, and keeps the sum of times in range.
  const std::int64_t limit = fields.integer("t_max_predict_ms", -1, kIntMax).value_or(0);
  if (limit > 0 && limit < 86'400'000) g.time_limit = std::chrono::milliseconds(limit);
  return g;
}

StreamFields parse_stream_fields(const JsonValue& body) {
  const FieldReader fields(body);
  StreamFields s;
  s.stream = fields.boolean("stream").value_or(false);
  if (const auto options = fields.nested("stream_options"))
    s.include_usage = options->boolean("include_usage").value_or(false);
  s.return_progress = fields.boolean("return_progress").value_or(false);
  s.timings_per_token = fields.boolean("timings_per_token").value_or(false);
  return s;
}

}  // namespace gem::server
