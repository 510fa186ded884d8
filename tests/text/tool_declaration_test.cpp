// Tool schemas, ordinary and odd: each is shown in full or refused by the tool's name and the place.
#include "text/tool_declaration.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat_format.h"

namespace gem {
namespace {

// The declaration with ' for the quote token, without the brackets around it.
std::string declared(std::string_view function) {
  PromptBuilder out;
  render_declaration(
      out,
      parse_tools(parse_json("[{\"type\":\"function\",\"function\":" + std::string(function) + "}]"))[0]);
  std::string text = to_text(out.take());
  for (std::size_t at = 0; (at = text.find("<|\"|>", at)) != std::string::npos;) text.replace(at, 5, "'");
  EXPECT_TRUE(text.starts_with("<|tool>declaration:f{") && text.ends_with("}<tool|>")) << text;
  return text.substr(21, text.size() - 21 - 8);
}

std::string parameters(std::string_view schema) {
  const std::string text = declared("{\"name\":\"f\",\"parameters\":" + std::string(schema) + "}");
  const std::string before = "description:'',parameters:{";
  EXPECT_TRUE(text.starts_with(before) && text.ends_with("}")) << text;
  return text.substr(before.size(), text.size() - before.size() - 1);
}

std::string property(std::string_view schema) {
  const std::string text = parameters(R"({"type":"object","properties":{"p":)" + std::string(schema) + "}}");
  const std::string before = "properties:{p:{";
  const std::string after = "}},type:'OBJECT'";
  EXPECT_TRUE(text.starts_with(before) && text.ends_with(after)) << text;
  return text.substr(before.size(), text.size() - before.size() - after.size());
}

std::string refusal(std::string_view schema) {
  try {
    return "shown: " + parameters(schema);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
}

TEST(ToolDeclaration, MissingTypeOfParametersIsObject) {
  EXPECT_EQ(parameters(R"({"properties":{"a":{"type":"string"}}})"),
            "properties:{a:{type:'STRING'}},type:'OBJECT'");
  EXPECT_EQ(parameters(R"({"required":["a"]})"), "required:['a'],type:'OBJECT'");
  EXPECT_EQ(parameters(R"({"additionalProperties":false})"), "type:'OBJECT'");
  EXPECT_EQ(declared(R"({"name":"f","parameters":{}})"), "description:''");
  EXPECT_EQ(declared(R"({"name":"f","description":"d","response":{"description":"r"}})"),
            "description:'d',response:{description:'r',type:'OBJECT'}");
}

TEST(ToolDeclaration, FieldsOfAProperty) {
  EXPECT_EQ(property(R"({"type":"string","nullable":true,"enum":["b","a"],"description":" d "})"),
            "description:' d ',enum:['b','a'],nullable:true,type:'STRING'");
  EXPECT_EQ(property(R"({"type":"integer","enum":[1],"minimum":0,"default":null})"), "type:'INTEGER'");
  EXPECT_EQ(property(R"({"type":"string","enum":null,"description":""})"), "type:'STRING'");
  EXPECT_EQ(property(R"({"type":["string","null"],"enum":["a"]})"), "type:'['STRING', 'NULL']'");
  EXPECT_EQ(property(R"({"anyOf":[{"type":"string"}]})"), "type:''");
  EXPECT_EQ(property("true"), "type:''");
}

TEST(ToolDeclaration, Objects) {
  EXPECT_EQ(property(R"({"type":"object"})"), "properties:{},type:'OBJECT'");
  EXPECT_EQ(
      property(
          R"({"type":"object","properties":{},"required":["x"],"additionalProperties":{"type":"string"}})"),
      "properties:{},required:['x'],type:'OBJECT'");
  EXPECT_EQ(property(R"({"type":"object","additionalProperties":false,"title":"T","nullable":true})"),
            "nullable:true,properties:{additionalProperties:{type:''},title:{type:''}},type:'OBJECT'");
}

TEST(ToolDeclaration, Items) {
  EXPECT_EQ(
      property(R"({"type":"array","items":{"type":"array","items":{"type":"number","Max":1e5,"a":null}}})"),
      "items:{items:{'a':null,'Max':100000.0,'type':'number'},type:'ARRAY'},type:'ARRAY'");
  EXPECT_EQ(property(R"({"type":"array","items":{"type":["integer","null"],"default":null}})"),
            "items:{type:['INTEGER','NULL']},type:'ARRAY'");
  EXPECT_EQ(
      property(R"({"type":"array","items":{"properties":{"b":{"type":"string"},"A":{}},"required":["b"]}})"),
      "items:{properties:{A:{type:''},b:{type:'STRING'}},required:['b']},type:'ARRAY'");
  EXPECT_EQ(property(R"({"type":"array","items":{}})"), "type:'ARRAY'");
  EXPECT_EQ(property(R"({"type":"array","items":[{"type":"string"}]})"), "type:'ARRAY'");
}

TEST(ToolDeclaration, NamesAreTextAsTheyStand) {
  PromptBuilder out;
  render_declaration(out, parse_tools(parse_json(R"([{"function":{"name":"a\"<|\"|>{"}}])"))[0]);
  EXPECT_EQ(out.take()[1], (PromptPiece{false, "declaration:a\"<|\"|>{{description:"}));
}

TEST(ToolDeclaration, SixtyFourToolsKeepTheirOrder) {
  std::vector<Tool> tools;
  for (int i = 0; i < 64; ++i) tools.push_back({"t" + std::to_string(i), "", {}, {}});
  const std::string text = to_text(render_chat({}, tools, {}).pieces);
  std::size_t at = 0;
  for (const Tool& tool : tools) {
    at = text.find("<|tool>declaration:" + tool.name + "{", at);
    ASSERT_NE(at, std::string::npos) << tool.name;
  }
}

TEST(ToolDeclaration, NestsFiveLevelsAndRefusesTooMany) {
  const auto nested = [](int levels) {
    std::string schema = R"({"type":"string"})";
    for (int i = 0; i < levels; ++i) schema = R"({"type":"object","properties":{"p":)" + schema + "}}";
    return schema;
  };
  const std::string five = property(nested(5));
  EXPECT_NE(
      five.find("properties:{p:{properties:{p:{properties:{p:{properties:{p:{properties:{p:{type:'STRING'}}"),
      std::string::npos);
  const std::string many = refusal(nested(100));
  EXPECT_TRUE(many.starts_with("tool \"f\", parameters.properties.p.properties.p")) << many;
  EXPECT_TRUE(many.ends_with("nested deeper than 64 schemas")) << many;
}

// ---- references

TEST(ToolReferences, AreReplacedWhereSchemasAreShown) {
  EXPECT_EQ(parameters(R"({"type":"object","properties":{"p":{"$ref":"#/$defs/P","description":"own"},
      "q":{"type":"array","items":{"$ref":"#/definitions/a~1b%20c"}},
      "r":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/P"}]}}},
      "$defs":{"P":{"type":"string","description":"theirs"}},"definitions":{"a/b c":{"type":"integer"}}})"),
            "properties:{p:{description:'own',type:'STRING'},q:{items:{type:'INTEGER'},type:'ARRAY'},"
            "r:{items:{anyOf:[{'description':'theirs','type':'string'}]},type:'ARRAY'}},type:'OBJECT'");
  EXPECT_EQ(
      parameters(
          R"({"$ref":"#/$defs/A","$defs":{"A":{"type":"object","properties":{"x":{"$ref":"#/$defs/B"}}},"B":{"$ref":"#/$defs/C"},"C":{"type":"boolean"}}})"),
      "properties:{x:{type:'BOOLEAN'}},type:'OBJECT'");
}

TEST(ToolReferences, OfDataAndOfPropertyNamesAreNone) {
  EXPECT_EQ(parameters(R"({"type":"object","properties":{"$ref":{"type":"string","enum":["#/x"]}}})"),
            "properties:{$ref:{enum:['#/x'],type:'STRING'}},type:'OBJECT'");
  EXPECT_EQ(property(R"({"type":"array","items":{"type":"object","default":{"$ref":"#/nowhere"}}})"),
            "items:{default:{'$ref':'#/nowhere'},type:'OBJECT'},type:'ARRAY'");
}

TEST(ToolReferences, UsedTwiceAreNoCycle) {
  EXPECT_EQ(
      parameters(
          R"({"properties":{"a":{"$ref":"#/$defs/P"},"b":{"$ref":"#/$defs/P"}},"$defs":{"P":{"type":"string"}}})"),
      "properties:{a:{type:'STRING'},b:{type:'STRING'}},type:'OBJECT'");
}

TEST(ToolReferences, ThatLeadNowhereAreRefused) {
  const auto with = [](const std::string& ref) {
    return refusal(R"({"type":"object","properties":{"p":{"$ref":)" + ref +
                   R"(}},"$defs":{"s":"text","l":[{}]}})");
  };
  const std::string place = "tool \"f\", parameters.properties.p: ";
  EXPECT_EQ(with(R"("#/$defs/none")"), place + "\"$ref\" #/$defs/none leads nowhere");
  EXPECT_EQ(with(R"("#/$defs/l/1")"), place + "\"$ref\" #/$defs/l/1 leads nowhere");
  EXPECT_EQ(with(R"("#/$defs/l/99999999999999999999")"),
            place + "\"$ref\" #/$defs/l/99999999999999999999 leads nowhere");
  EXPECT_EQ(with(R"("#anchor")"), place + "\"$ref\" #anchor is no JSON pointer");
  EXPECT_EQ(with(R"("#/$defs/s")"), place + "\"$ref\" #/$defs/s does not lead to an object");
  EXPECT_EQ(with("7"), place + "\"$ref\" must be a string");
  EXPECT_TRUE(with(R"("https://example.org/x.json")")
                  .starts_with(place + "\"$ref\" https://example.org/x.json is not local"));
}

TEST(ToolReferences, CyclesAreRefused) {
  EXPECT_NE(
      refusal(R"({"type":"object","properties":{"n":{"$ref":"#/$defs/N"}},
      "$defs":{"N":{"type":"object","properties":{"next":{"$ref":"#/$defs/N"}}}}})")
          .find(
              "tool \"f\", parameters.properties.n.properties.next: \"$ref\" #/$defs/N leads back to itself"),
      std::string::npos);
  EXPECT_NE(
      refusal(
          R"({"properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"$ref":"#/$defs/B"},"B":{"$ref":"#/$defs/A"}}})")
          .find("leads back to itself"),
      std::string::npos);
  EXPECT_NE(
      refusal(R"({"properties":{"a":{"type":"array","items":{"$ref":"#"}}}})").find("leads back to itself"),
      std::string::npos);
}

TEST(ToolReferences, ThatMultiplyAreRefused) {
  std::string defs = R"("d0":{"type":"string"})";
  for (int i = 1; i <= 40; ++i) {
    const std::string ref = R"({"$ref":"#/$defs/d)" + std::to_string(i - 1) + R"("})";
    defs += ",\"d" + std::to_string(i) + R"(":{"type":"object","properties":{"a":)" + ref + ",\"b\":" + ref +
            "}}";
  }
  EXPECT_NE(refusal(R"({"properties":{"p":{"$ref":"#/$defs/d40"}},"$defs":{)" + defs + "}}")
                .find("expands to more than 100000 values"),
            std::string::npos);
}

// ---- refusals

TEST(ToolDeclaration, MalformedSchemasAreRefusedByPlace) {
  EXPECT_EQ(refusal(R"({"properties":[1]})"), "tool \"f\", parameters.properties: must be an object");
  EXPECT_EQ(refusal(R"({"required":"a"})"), "tool \"f\", parameters.required: must be an array of strings");
  EXPECT_EQ(refusal(R"({"properties":{"p":{"type":7}}})"),
            "tool \"f\", parameters.properties.p.type: must be a string or an array of strings");
  EXPECT_EQ(refusal(R"({"properties":{"p":{"type":"array","items":{"required":[1]}}}})"),
            "tool \"f\", parameters.properties.p.items.required: must be an array of strings");
  EXPECT_EQ(refusal(R"({"properties":{"p":{"description":["x"]}}})"),
            "tool \"f\", parameters.properties.p.description: must be a string");
}

TEST(ToolDeclaration, ToolsThatAreNoFunctionsAreRefused) {
  const auto refused = [](std::string_view json) {
    try {
      parse_tools(parse_json(json));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("{}"), "tools: must be an array");
  EXPECT_EQ(refused(R"([{"type":"web_search"}])"),
            "tools[0].type: only \"function\" tools are supported, not \"web_search\"");
  EXPECT_EQ(refused(R"([{"type":"function"}])"), "tools[0].function: missing");
  EXPECT_EQ(refused(R"([{"function":{"name":""}}])"), "tools[0].function.name: must be a non-empty string");
  EXPECT_EQ(refused(R"([{"function":{"name":"f","parameters":[]}}])"),
            "tools[0].function.parameters (tool \"f\"): must be an object");
}

}  // namespace
}  // namespace gem
