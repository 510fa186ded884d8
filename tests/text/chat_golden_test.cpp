// The renderer against the reference prompts.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "golden.h"
#include "text/chat_format.h"

namespace gem {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<Json> cases;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) cases.push_back(Json::parse(line));
  }
  return cases;
}

ChatOptions options_of(const Json& options, ChatVariant variant) {
  return {.add_generation_prompt = options.value("add_generation_prompt", true),
          .enable_thinking = options.value("enable_thinking", false),
          .preserve_thinking = options.value("preserve_thinking", false),
          .variant = variant};
}

RenderedPrompt render_case(const Json& item, ChatVariant variant) {
  const std::vector<Tool> tools = parse_tools(item.value("tools", Json()));
  return render_chat(parse_messages(item.at("messages")), tools, options_of(item.at("options"), variant));
}

// The references follow the template to the letter. Where it leaves a closed turn and no model turn after
// text and calls, the format's rule is to open one.
std::string patched(const Json& item, std::string prompt) {
  const bool quirk = item.value("note", "").starts_with("quirk");
  if (item.at("name") == "tool-content-and-call-trailing" || quirk) {
    EXPECT_TRUE(prompt.ends_with("<turn|>\n")) << item.at("id") << ": an unknown quirk";
    prompt += "<|turn>model\n";
  }
  return prompt;
}

TEST(ChatGolden, EveryPromptOfBothVariants) {
  GEM_GOLDEN_OR_SKIP(path, "chat-format.jsonl");
  const std::vector<Json> cases = lines_of(path);
  ASSERT_GE(cases.size(), 88u);
  for (const Json& item : cases) {
    const std::string name = item.at("id").get<std::string>() + " " + item.at("name").get<std::string>();
    EXPECT_EQ(to_text(render_case(item, ChatVariant::kLarge).pieces), patched(item, item.at("prompt")))
        << name;
    EXPECT_EQ(to_text(render_case(item, ChatVariant::kSmall).pieces), patched(item, item.at("prompt_small")))
        << name;
  }
}

TEST(ChatGolden, NoPieceOfTextIsEmptyOrFollowsText) {
  GEM_GOLDEN_OR_SKIP(path, "chat-format.jsonl");
  for (const Json& item : lines_of(path)) {
    const std::vector<PromptPiece> pieces = render_case(item, ChatVariant::kLarge).pieces;
    ASSERT_EQ(pieces.front(), (PromptPiece{true, "<bos>"}));
    for (std::size_t i = 1; i < pieces.size(); ++i) {
      EXPECT_FALSE(pieces[i].text.empty()) << item.at("id");
      EXPECT_NE(pieces[i], pieces.front()) << item.at("id");
      EXPECT_TRUE(pieces[i].special || pieces[i - 1].special)
          << item.at("id") << ": neighbouring runs of text";
    }
  }
}

TEST(ChatGolden, ThoughtIsOpenWhereThePromptEndsInItsLabel) {
  GEM_GOLDEN_OR_SKIP(path, "chat-format.jsonl");
  std::size_t open = 0;
  for (const Json& item : lines_of(path)) {
    const RenderedPrompt prompt = render_case(item, ChatVariant::kLarge);
    EXPECT_EQ(prompt.open_thought, to_text(prompt.pieces).ends_with("<|channel>thought\n")) << item.at("id");
    open += prompt.open_thought ? 1 : 0;
  }
  EXPECT_GT(open, 0u);
}

// Inputs recorded with older templates: gem renders them in the canonical form, whatever the model file
// carries.
TEST(ChatGolden, InputsOfOlderTemplatesRenderCanonically) {
  GEM_GOLDEN_OR_SKIP(path, "chat-format-legacy.jsonl");
  GEM_GOLDEN_OR_SKIP(canonical_path, "chat-format.jsonl");
  const std::vector<Json> canonical = lines_of(canonical_path);
  for (const Json& item : lines_of(path)) {
    const std::string prompt = to_text(render_case(item, ChatVariant::kLarge).pieces);
    for (const Json& same : canonical) {
      if (same.at("name") != item.at("name") || same.at("messages") != item.at("messages")) continue;
      EXPECT_EQ(prompt, patched(same, same.at("prompt"))) << item.at("id");
    }
  }
}

}  // namespace
}  // namespace gem
