// The writers of the OpenAI chat, legacy completions and native APIs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/api/api.h"
#include "server/api/reply_source.h"

namespace gem::server {

// What the chunks of one reply have in common.
struct ReplyIdentity {
  std::string id;
  std::int64_t created = 0;
  std::string model;
  std::string fingerprint;
};

// {"id","object","created","model","system_fingerprint"}, with which every reply and chunk begins.
nlohmann::ordered_json openai_head(const ReplyIdentity& identity, const char* object);  // api/openai_chat.cpp

struct OpenAiReply {
  ReplyIdentity identity;
  std::size_t choices = 1;
  std::size_t choices_per_prompt =
      1;  // completions of several prompts: choices are numbered prompt by prompt
  StreamFields stream;
  bool logprobs = false;
  bool return_tokens = false;
  std::function<std::string(const char* prefix)> new_id;  // of calls
};

struct NativeReply {
  std::string model;
  std::size_t choices_per_prompt = 1;
  std::vector<std::string> prompts;  // as text
  GenerationFields fields;           // for generation_settings
  StreamFields stream;
  std::vector<std::string> response_fields;  // empty: all
};

std::unique_ptr<ReplyWriter> chat_writer(OpenAiReply reply);        // api/openai_chat.cpp
std::unique_ptr<ReplyWriter> completion_writer(OpenAiReply reply);  // api/completions.cpp
std::unique_ptr<ReplyWriter> native_writer(NativeReply reply);      // api/native.cpp

}  // namespace gem::server
