// What is served and how: /v1/models, /props, /slots.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "model/model.h"
#include "server/api/api.h"
#include "server/api/api_error.h"
#include "server/api/json_echo.h"

namespace gem::server {
namespace {

using nlohmann::ordered_json;

// The storage type that most bytes have: "Q4_0".
std::string main_storage(const Checkpoint& checkpoint) {
  std::string name;
  std::uint64_t most = 0;
  for (const auto& [type, count] : count_storage(checkpoint)) {
    if (count.bytes <= most) continue;
    most = count.bytes;
    name = type;
  }
  return name;
}

struct Size {
  std::uint64_t parameters = 0, bytes = 0;
};
Size size_of(const Checkpoint& checkpoint) {
  Size size;
  for (const TensorView& t : checkpoint.tensors()) {
    size.parameters += t.elements();
    size.bytes += t.bytes.size();
  }
  return size;
}

std::string rfc3339(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

// OpenAI's fields; llama-server's (aliases, tags, meta); Anthropic's (type, display_name, created_at).
ordered_json model_json(const ApiContext& context) {
  const Model& model = context.session.model();
  const Geometry& g = model.geometry();
  const Size size = size_of(model.checkpoint());
  return {{"id", context.card.id},
          {"object", "model"},
          {"created", context.card.created},
          {"owned_by", "gem"},
          {"type", "model"},
          {"display_name", model.profile().title},
          {"created_at", rfc3339(context.card.created)},
          {"aliases", ordered_json::array()},
          {"tags", ordered_json::array()},
          {"architecture", {{"input_modalities", {"text"}}, {"output_modalities", {"text"}}}},
          {"meta",
           {{"vocab_type", 2},  // byte-pair encoding, as llama-server counts
            {"n_vocab", g.vocab},
            {"n_ctx", context.session.engine().options().context},
            {"n_ctx_train", g.context},
            {"n_embd", g.hidden},
            {"n_params", size.parameters},
            {"size", size.bytes},
            {"ftype", main_storage(model.checkpoint())}}}};
}

ordered_json sampling_json(const ApiContext& context) {
  const SamplingParams& s = context.defaults.sampling;
  ordered_json json = {{"temperature", s.temperature},
                       {"top_k", s.top_k},
                       {"top_p", s.top_p},
                       {"min_p", s.min_p},
                       {"repeat_penalty", s.repetition_penalty},
                       {"repeat_last_n", s.penalty_window},
                       {"presence_penalty", s.presence_penalty},
                       {"frequency_penalty", s.frequency_penalty},
                       {"seed", -1},
                       {"n_predict", -1},
                       {"max_tokens", -1},
                       {"stream", false},
                       {"reasoning_format", "deepseek"},
                       {"chat_format", "gemma4"}};
  json["thinking_budget_tokens"] =
      context.defaults.thinking_budget ? ordered_json(*context.defaults.thinking_budget) : ordered_json(-1);
  return json;
}

ordered_json slot_json(const ServiceStatus::Slot& slot, std::uint32_t context) {
  ordered_json next = {{"has_next_token", slot.busy},
                       {"has_new_line", false},
                       {"n_remain", -1},
                       {"n_decoded", slot.generated}};
  return {{"id", slot.id},
          {"id_task", -1},
          {"n_ctx", context},
          {"speculative", false},
          {"is_processing", slot.busy},
          {"n_prompt_tokens", slot.prompt_tokens},
          {"n_prompt_tokens_processed", slot.prompt_done},
          {"n_prompt_tokens_cache", slot.cached},
          {"n_kept", slot.kept},
          {"params", ordered_json::object()},
          {"next_token", ordered_json::array({std::move(next)})}};
}

ApiError not_supported(std::string message) {
  return ApiError::of(501, "not_supported_error", std::move(message));
}

Reply slot_action(const ApiContext& context, const HttpRequest& request, std::string_view id_text) {
  std::size_t id = 0;
  const bool digits =
      !id_text.empty() && id_text.size() < 10 &&
      std::all_of(id_text.begin(), id_text.end(), [](char c) { return c >= '0' && c <= '9'; });
  for (const char c : id_text) id = digits ? id * 10 + static_cast<std::size_t>(c - '0') : 0;
  if (!digits || id >= context.service.status().slots.size())
    throw ApiError::bad_field("id_slot", "Invalid slot ID");
  const std::string_view action = request.query_value("action").value_or("");
  if (action == "save" || action == "restore")
    throw not_supported(fmt::format("slot action '{}' is not supported: states are kept in memory", action));
  if (action != "erase")
    throw ApiError::bad_field("action", "Invalid action: expected erase, save or restore");
  const std::optional<std::uint32_t> erased = context.service.erase_slot(id);
  if (!erased) {
    ApiError busy = ApiError::bad_field("id_slot", "the slot is busy");
    busy.status = 409;
    throw busy;
  }
  return json_response({{"id_slot", id}, {"n_erased", *erased}});
}

}  // namespace

Reply list_models(const ApiContext& context, const HttpRequest&) {
  const ordered_json model = model_json(context);
  // `models`: the same in the form of Ollama, which some clients of llama-server read.
  const ordered_json ollama = {
      {"name", context.card.id},
      {"model", context.card.id},
      {"modified_at", rfc3339(context.card.created)},
      {"size", model["meta"]["size"]},
      {"type", "model"},
      {"tags", ordered_json::array()},
      {"capabilities", {"completion", "tools", "thinking"}},
      {"details",
       {{"format", "gguf"}, {"family", "gemma4"}, {"quantization_level", model["meta"]["ftype"]}}}};
  return json_response({{"object", "list"},
                        {"data", ordered_json::array({model})},
                        {"models", ordered_json::array({ollama})},
                        {"has_more", false},
                        {"first_id", context.card.id},
                        {"last_id", context.card.id}});
}

Reply get_model(const ApiContext& context, const HttpRequest&, const std::string& id) {
  if (id != context.card.id) {
    ApiError e = ApiError::not_found(
        fmt::format("The model '{}' does not exist; this server has '{}'", id, context.card.id));
    e.param = "model";
    e.code = "model_not_found";
    throw e;
  }
  return json_response(model_json(context));
}

Reply props(const ApiContext& context, const HttpRequest& request) {
  if (request.method == "POST")
    throw not_supported("This server does not support changing global properties");
  const Model& model = context.session.model();
  const Tokenizer& tokenizer = context.session.tokenizer();
  const std::string eos = tokenizer.special_id("<turn|>") ? "<turn|>" : "<eos>";
  return json_response(
      {{"default_generation_settings",
        {{"n_ctx", context.session.engine().options().context}, {"params", sampling_json(context)}}},
       {"total_slots", context.service.status().slots.size()},
       {"model_alias", context.card.id},
       // The name alone: where it lies on this machine is nobody's business.
       {"model_path", std::filesystem::path(model.path()).filename().string()},
       {"model_ftype", main_storage(model.checkpoint())},
       {"modalities", {{"vision", false}, {"audio", false}, {"video", false}}},
       {"media_marker", ""},
       {"endpoint_slots", true},
       {"endpoint_props", false},
       {"endpoint_metrics", true},
       {"ui", true},
       {"ui_settings", ordered_json::object()},
       // The format is built in (Gemma 4's); a checkpoint's own template is shown for those who look at it.
       {"chat_template", model.checkpoint().string("tokenizer.chat_template").value_or("")},
       {"chat_template_caps",
        {{"supports_string_content", true},
         {"supports_typed_content", true},
         {"supports_tools", true},
         {"supports_tool_calls", true},
         {"supports_parallel_tool_calls", true},
         {"supports_system_role", true},
         {"supports_preserve_reasoning", true},
         {"supports_object_arguments", true}}},
       {"thinking_default", context.defaults.thinking},
       {"bos_token", tokenizer.decode_bytes(tokenizer.bos())},
       {"eos_token", eos},
       {"build_info", context.card.fingerprint},
       {"is_sleeping", false},
       {"cors_proxy_enabled", false}});
}

Reply slots(const ApiContext& context, const HttpRequest& request) {
  constexpr std::string_view kFolder = "/slots/";
  if (request.path.starts_with(kFolder))
    return slot_action(context, request, std::string_view(request.path).substr(kFolder.size()));
  const ServiceStatus status = context.service.status();
  const auto idle =
      std::count_if(status.slots.begin(), status.slots.end(), [](const auto& s) { return !s.busy; });
  const std::string_view fail = request.query_value("fail_on_no_slot").value_or("");
  if (!fail.empty() && fail != "0" && idle == 0) throw ApiError::unavailable("no slot available");
  ordered_json list = ordered_json::array();
  for (const ServiceStatus::Slot& slot : status.slots)
    list.push_back(slot_json(slot, context.session.engine().options().context));
  return json_response(list);
}

}  // namespace gem::server
