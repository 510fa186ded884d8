#include "text/chat_format.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/prompt_builder.h"
#include "text/python_text.h"
#include "text/tool_declaration.h"

namespace gem {
namespace {

constexpr std::string_view kThoughtLabel = "thought\n";

bool is_system(const Message& message) {
  return message.role == "system" || message.role == "developer";
}
bool is_tool(const Message& message) {
  return message.role == "tool";
}

// A client's text with inline thoughts taken out, trimmed. The markers here are spelled in the text itself.
std::string strip_thoughts(std::string_view text) {
  constexpr std::string_view kOpen = "<|channel>";
  constexpr std::string_view kClose = "<channel|>";
  std::string kept;
  for (bool more = true; more;) {
    const std::size_t close = text.find(kClose);
    more = close != std::string_view::npos;
    const std::string_view piece = text.substr(0, close);
    kept += piece.substr(0, piece.find(kOpen));
    if (more) text.remove_prefix(close + kClose.size());
  }
  return std::string(python_strip(kept));
}

class Renderer {
 public:
  Renderer(const std::vector<Message>& messages, const std::vector<Tool>& tools, const ChatOptions& options)
      : messages_(messages), tools_(tools), options_(options) {}

  RenderedPrompt render() {
    const bool continues = options_.continue_final != ContinueFinal::kNo;
    if (continues) check_continuable();
    end_ = messages_.size() - (continues ? 1 : 0);
    out_.special("<bos>");
    system_turn();
    last_user_ = end_;  // none
    for (std::size_t i = first_; i < end_; ++i) {
      if (messages_[i].role == "user") last_user_ = i;
    }
    next_spoken_.assign(end_ + 1, end_);  // the next message that is no tool result, after each place
    for (std::size_t i = end_; i-- > 0;) next_spoken_[i] = is_tool(messages_[i]) ? next_spoken_[i + 1] : i;
    for (std::size_t i = first_; i < end_; ++i) {
      if (!is_tool(messages_[i])) message(i);
    }
    if (continues) {
      continue_final(messages_.back());
    } else if (options_.add_generation_prompt) {
      generation_prompt();
    }
    prompt_.pieces = out_.take();
    return std::move(prompt_);
  }

 private:
  enum class Ending { kOther, kCalls, kResponses, kResponsesThenText };

  void check_continuable() const {
    const auto refuse = [&](std::string_view why) {
      fail(ErrorCode::kUsage, "messages[{}]: cannot be continued: {}",
           messages_.empty() ? 0 : messages_.size() - 1, why);
    };
    if (messages_.empty() || messages_.back().role != "assistant") refuse("it is not an assistant message");
    if (!ends_in_prefill(messages_)) refuse("it has tool calls");
    if (messages_.size() > 1 && messages_[messages_.size() - 2].role == "assistant") {
      refuse("two assistant messages at the end");
    }
  }

  void system_turn() {
    const bool has_system = end_ > 0 && is_system(messages_[0]);
    if (!options_.enable_thinking && tools_.empty() && !has_system) return;
    out_.special("<|turn>");
    out_.text("system\n");
    if (options_.enable_thinking) {
      out_.special("<|think|>");
      out_.text("\n");
    }
    if (has_system) {
      const Content& content = messages_[0].content;
      out_.text(python_strip(content.text));
      for (const ContentPart& part : content.parts) {
        out_.text(python_strip(part.text));
        out_.text(" ");
      }
      first_ = 1;
    }
    for (const Tool& tool : tools_) render_declaration(out_, tool);
    end_turn();
  }

  void end_turn() {
    out_.special("<turn|>");
    out_.text("\n");
  }

  void message(std::size_t index) {
    const Message& message = messages_[index];
    const bool model = message.role == "assistant" || message.role == "model";
    if (!model || previous_ != "assistant") {
      out_.special("<|turn>");
      out_.text(model ? "model" : std::string_view(message.role));
      out_.text("\n");
    }
    const bool recent = last_user_ == end_ || index > last_user_;
    if (!message.reasoning.empty() &&
        (recent || (options_.preserve_thinking && !message.tool_calls.empty()))) {
      out_.special("<|channel>");
      out_.text(kThoughtLabel);
      out_.text(message.reasoning);
      out_.text("\n");
      out_.special("<channel|>");
    }
    for (const ToolCall& call : message.tool_calls) {
      out_.special("<|tool_call>");
      out_.text("call:" + call.name + "{");
      out_.arguments(call.arguments);
      out_.text("}");
      out_.special("<tool_call|>");
    }
    const bool responded = responses(index);
    const bool spoke = content(index, model);

    const std::size_t next = next_spoken_[index + 1];
    const bool unanswered = !message.tool_calls.empty() && !responded;
    const bool model_goes_on = model && next < end_ && messages_[next].role == "assistant";
    ending_ = Ending::kOther;
    if (unanswered) {
      out_.special("<|tool_response>");
      ending_ = Ending::kCalls;
    } else if (responded) {
      ending_ = spoke ? Ending::kResponsesThenText : Ending::kResponses;
    }
    // The turn stays open for the model: after calls, within its own run of messages, and after results at
    // the end.
    if (!unanswered && !model_goes_on && !(responded && !spoke && next == end_)) end_turn();
    previous_ = message.role;
  }

  // The results of the message's calls: its own, or the tool messages right after it. False if there are
  // none.
  bool responses(std::size_t index) {
    const Message& message = messages_[index];
    for (const ToolResponse& response : message.tool_responses) {
      response_block(response.name.empty() ? "unknown" : response.name, response.response);
    }
    if (!message.tool_responses.empty()) return true;
    if (message.tool_calls.empty()) return false;
    std::size_t i = index + 1;
    for (; i < end_ && is_tool(messages_[i]); ++i) {
      const Message& result = messages_[i];
      std::string_view name = result.name.empty() ? std::string_view("unknown") : result.name;
      for (const ToolCall& call : message.tool_calls) {
        if (call.id == result.tool_call_id)
          name = call.name;  // also where neither has one; the last call wins
      }
      response_block(name, result_value(result.content));
      for (std::size_t part = 0; part < result.content.parts.size(); ++part) media(i, part);
    }
    return i > index + 1;
  }

  static JsonValue result_value(const Content& content) {
    if (content.form == Content::Form::kNone) return {};
    JsonValue value = JsonValue::string(content.text);
    for (const ContentPart& part : content.parts) {
      if (part.kind == ContentPart::Kind::kText) value.text += part.text;
    }
    return value;
  }

  void response_block(std::string_view name, const JsonValue& response) {
    out_.special("<|tool_response>");
    out_.text("response:");
    out_.text(name);
    out_.text("{");
    if (response.is_object()) {
      out_.arguments(response);
    } else {
      out_.text("value:");
      out_.value(response, PromptBuilder::Keys::kBare);
    }
    out_.text("}");
    out_.special("<tool_response|>");
  }

  // False if nothing, or only blanks, came of it.
  bool content(std::size_t index, bool model) {
    const Content& content = messages_[index].content;
    const auto write = [&](std::string_view text) {
      const std::string shown = model ? strip_thoughts(text) : std::string(python_strip(text));
      out_.text(shown);
      return !shown.empty();
    };
    bool any = write(content.text);
    for (std::size_t part = 0; part < content.parts.size(); ++part) {
      if (content.parts[part].kind == ContentPart::Kind::kText) {
        any = write(content.parts[part].text) || any;
      } else {
        any = media(index, part) || any;
      }
    }
    return any;
  }

  bool media(std::size_t message, std::size_t part) {
    const ContentPart::Kind kind = messages_[message].content.parts[part].kind;
    std::string_view token;
    if (kind == ContentPart::Kind::kImage) token = "<|image|>";
    if (kind == ContentPart::Kind::kAudio) token = "<|audio|>";
    if (kind == ContentPart::Kind::kVideo) token = "<|video|>";
    if (token.empty()) return false;
    prompt_.media.push_back({kind, message, part, out_.size()});
    out_.special(token);
    return true;
  }

  void generation_prompt() {
    switch (ending_) {
      case Ending::kCalls:
        return;
      case Ending::kResponses:
        if (options_.enable_thinking) open_thought();
        return;
      case Ending::kResponsesThenText:
        // The template closes the turn here and opens none; the model needs one to speak in.
        out_.special("<|turn>");
        out_.text("model\n");
        return;
      case Ending::kOther:
        out_.special("<|turn>");
        out_.text("model\n");
        if (!options_.enable_thinking && options_.variant == ChatVariant::kLarge) {
          open_thought();
          close_thought();
        }
        return;
    }
  }

  void open_thought() {
    out_.special("<|channel>");
    out_.text(kThoughtLabel);
    prompt_.open_thought = true;
  }

  void close_thought() {
    out_.special("<channel|>");
    prompt_.open_thought = false;
  }

  void continue_final(const Message& last) {
    if (out_.size() == 1 || out_.ends_with_turn()) {
      out_.special("<|turn>");
      out_.text("model\n");
    }
    std::string text = last.content.text;
    for (const ContentPart& part : last.content.parts) {
      if (part.kind != ContentPart::Kind::kText) {
        fail(ErrorCode::kUsage, "messages[{}]: cannot be continued: it holds more than text",
             messages_.size() - 1);
      }
      text += part.text;
    }
    ContinueFinal mode = options_.continue_final;
    if (mode == ContinueFinal::kAuto) {
      mode = text.empty() && !last.reasoning.empty() ? ContinueFinal::kReasoning : ContinueFinal::kContent;
    }
    if (mode == ContinueFinal::kReasoning) {
      open_thought();
      out_.text(last.reasoning);
      return;
    }
    // The small models answer directly, without an empty thought before.
    if (options_.variant == ChatVariant::kLarge || !last.reasoning.empty()) {
      open_thought();
      out_.text(last.reasoning);
      close_thought();
    }
    out_.text(text);
  }

  const std::vector<Message>& messages_;
  const std::vector<Tool>& tools_;
  const ChatOptions& options_;

  PromptBuilder out_;
  RenderedPrompt prompt_;
  std::size_t first_ = 0;      // first message after the system turn
  std::size_t end_ = 0;        // one past the last message rendered as history
  std::size_t last_user_ = 0;  // end_ if there is none
  std::vector<std::size_t> next_spoken_;
  std::string_view previous_;  // role of the previous message that is no tool result
  Ending ending_ = Ending::kOther;
};

}  // namespace

RenderedPrompt render_chat(const std::vector<Message>& messages, const std::vector<Tool>& tools,
                           const ChatOptions& options) {
  return Renderer(messages, tools, options).render();
}

std::string to_text(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace gem
