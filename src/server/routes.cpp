#include "server/routes.h"

#include <array>

namespace gem::server {
namespace {

constexpr std::string_view kModels = "/v1/models/", kModelsShort = "/models/";

Reply one_model(const ApiContext& context, const HttpRequest& request) {
  const std::string_view path = request.path;
  const std::size_t skip = path.starts_with(kModels) ? kModels.size() : kModelsShort.size();
  return get_model(context, request, std::string(path.substr(skip)));
}

using enum Route::Needs;

// spec: official paths, and llama-server's without /v1. /completions without /v1 is llama-server's own form.
constexpr std::array kRoutes{
    Route{"/health", "GET", kNothing, true, nullptr},
    Route{"/v1/health", "GET", kNothing, true, nullptr},
    Route{"/ready", "GET", kNothing, true, nullptr},
    Route{"/metrics", "GET", kNothing, false, nullptr},

    Route{"/v1/models", "GET", kModel, false, list_models},
    Route{"/models", "GET", kModel, false, list_models},
    Route{"/v1/models/*", "GET", kModel, false, one_model},
    Route{"/models/*", "GET", kModel, false, one_model},
    Route{"/props", "GET, POST", kModel, false, props},
    Route{"/slots", "GET", kModel, false, slots},
    Route{"/slots/*", "POST", kModel, false, slots},

    Route{"/v1/chat/completions", "POST", kService, false, chat_completions},
    Route{"/chat/completions", "POST", kService, false, chat_completions},
    Route{"/v1/chat/completions/input_tokens", "POST", kModel, false, chat_input_tokens},
    Route{"/chat/completions/input_tokens", "POST", kModel, false, chat_input_tokens},
    Route{"/v1/chat/completions/control", "POST", kModel, false, chat_control},
    Route{"/chat/completions/control", "POST", kModel, false, chat_control},
    Route{"/v1/completions", "POST", kService, false, completions},
    Route{"/completion", "POST", kService, false, native_completion},
    Route{"/completions", "POST", kService, false, native_completion},
    Route{"/v1/responses", "POST", kService, false, responses},
    Route{"/responses", "POST", kService, false, responses},
    Route{"/v1/responses/input_tokens", "POST", kModel, false, responses_input_tokens},
    Route{"/responses/input_tokens", "POST", kModel, false, responses_input_tokens},
    Route{"/v1/messages", "POST", kService, false, messages},
    Route{"/v1/messages/count_tokens", "POST", kModel, false, count_tokens},

    Route{"/tokenize", "POST", kModel, false, tokenize},
    Route{"/detokenize", "POST", kModel, false, detokenize},
    Route{"/apply-template", "POST", kModel, false, apply_template},
};

}  // namespace

std::span<const Route> all_routes() {
  return kRoutes;
}

const Route* find_route(std::string_view path) {
  const Route* rest = nullptr;
  for (const Route& route : kRoutes) {
    if (route.pattern == path) return &route;
    if (!route.pattern.ends_with('*')) continue;
    const std::string_view stem = route.pattern.substr(0, route.pattern.size() - 1);
    if (path.size() > stem.size() && path.starts_with(stem)) rest = &route;
  }
  return rest;
}

bool takes(const Route& route, std::string_view method) {
  if (method == "HEAD") method = "GET";
  if (method != "GET" && method != "POST") return false;
  return route.methods.find(method) != std::string_view::npos;
}

std::string allowed_methods(const Route& route) {
  std::string methods(route.methods);
  if (methods.starts_with("GET")) methods.replace(0, 3, "GET, HEAD");
  return methods + ", OPTIONS";
}

}  // namespace gem::server
