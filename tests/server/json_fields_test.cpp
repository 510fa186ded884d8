#include "server/api/json_fields.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "server/api_support.h"
#include "text/utf8.h"

namespace gem::server {
namespace {

using testing::refusal;

TEST(ParseObject, FaultsAreRefusedWithTheirPlace) {
  const std::pair<std::string, const char*> kBad[] = {
      {"", "no body"},
      {"null", "null, expected a JSON object"},
      {"[1]", "an array, expected a JSON object"},
      {"{\"a\":1", "ends at byte 6"},
      {"{\"a\":1} x", "at byte 8"},
      {"{\"a\":01}", "at byte 6"},
      {"{\"a\":NaN}", "at byte 5"},
      {"{\"a\":\"\xff\"}", "not valid UTF-8 at byte 6"},
      {std::string("{\"a\":\"\0\"}", 9), "at byte 6"},
      {std::string("{\"a\":1}\0", 8), "at byte 7"},
      {"\xEF\xBB\xBF{}", "at byte 0"},
      {std::string(100'000, '['), "at most 256 nested"},
      {"{\"a\":" + std::string(2000, '{'), "at byte"},
  };
  for (const auto& [text, expected] : kBad) {
    const ApiError error = refusal([&] { parse_object(text); });
    EXPECT_EQ(error.status, 400);
    EXPECT_NE(error.message.find(expected), std::string::npos) << error.message;
  }
}

TEST(ParseObject, AMillionValuesAreTheMost) {
  std::string body = "{\"a\":[0";
  for (std::size_t i = 0; i + 2 < kMaxJsonValues; ++i) body += ",0";
  const std::string fits = body + "]}";
  EXPECT_EQ(parse_object(fits).find("a")->items.size(), kMaxJsonValues - 1);
  const ApiError error = refusal([&] { parse_object(body + ",0,0]}"); });
  EXPECT_NE(error.message.find("at most 1000000 are read"), std::string::npos) << error.message;
}

TEST(ParseObject, SeparatorsInsideTextsAreNotCounted) {
  std::string text;
  for (int i = 0; i < 600'000; ++i) text += ",\\\"";
  EXPECT_EQ(parse_object("{\"a\":\"" + text + "\"}").find("a")->text.size(), 1'200'000u);
}

TEST(FieldReader, IntegersAreExactAtAnyLength) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto read = [](const std::string& number) {
    const JsonValue body = parse_object("{\"x\":" + number + "}");
    return FieldReader(body).integer("x", -5, kMax);
  };
  EXPECT_EQ(read("9223372036854775807"), kMax);
  EXPECT_EQ(read("-5"), -5);
  EXPECT_EQ(read("5.0"), 5);
  EXPECT_EQ(read("1e3"), 1000);
  EXPECT_EQ(read("null"), std::nullopt);
  for (const char* bad : {"9223372036854775808", "-6", "1.5", "1e400", "\"5\"", "true", "[5]",
                          "123456789012345678901234567890123456789012345678901234567890"}) {
    const ApiError error = refusal([&] { read(bad); });
    EXPECT_EQ(error.param, "x");
    EXPECT_EQ(error.message.find("Field 'x': expected an integer of at least -5, found "), 0u)
        << error.message;
    EXPECT_LT(error.message.size(), 120u);
  }
}

TEST(FieldReader, SeedsAreAny64BitsAndNoMore) {
  const auto read = [](const std::string& number) {
    const JsonValue body = parse_object("{\"seed\":" + number + "}");
    return FieldReader(body).bits64("seed");
  };
  EXPECT_EQ(read("18446744073709551615"), ~std::uint64_t{0});
  EXPECT_EQ(read("-9223372036854775808"), std::uint64_t{1} << 63);
  EXPECT_EQ(read("42"), 42u);
  EXPECT_EQ(refusal([&] { read("36893488147419103232"); }).message,
            "Field 'seed': expected a 64-bit integer, found 36893488147419103232");
  EXPECT_EQ(refusal([&] { read("-9223372036854775809"); }).param, "seed");
}

TEST(FieldReader, NumbersKnowTheirRangeAndSayIt) {
  const auto read = [](const std::string& number) {
    const JsonValue body = parse_object("{\"top_p\":" + number + "}");
    return FieldReader(body).number("top_p", 0, 1);
  };
  EXPECT_EQ(read("0.25"), 0.25);
  EXPECT_EQ(read("1"), 1.0);
  EXPECT_EQ(read("1e-999"), 0.0);
  EXPECT_EQ(read("0." + std::string(400, '0') + "1"), 0.0);
  EXPECT_EQ(refusal([&] { read("1.5"); }).message, "Field 'top_p': expected a number from 0 to 1, found 1.5");
  EXPECT_EQ(refusal([&] { read("\"a\\u0000b\""); }).message,
            "Field 'top_p': expected a number from 0 to 1, found \"a\\u0000b\"");
  for (const char* bad : {"1e308", "1e999", "-1e999", "-0.1", "{}", "false"})
    EXPECT_EQ(refusal([&] { read(bad); }).param, "top_p") << bad;
}

TEST(FieldReader, NestedFieldsAreNamedInFull) {
  const JsonValue body = parse_object(R"({"stream_options":{"include_usage":"yes"},"list":{}})");
  const FieldReader fields(body);
  EXPECT_EQ(refusal([&] { fields.nested("stream_options")->boolean("include_usage"); }).message,
            "Field 'stream_options.include_usage': expected true or false, found \"yes\"");
  EXPECT_EQ(refusal([&] { fields.array("list"); }).message,
            "Field 'list': expected an array, found an object");
}

TEST(FieldReader, ARepeatedKeyKeepsItsLastValue) {
  const JsonValue body = parse_object(R"({"n":1,"n":2})");
  EXPECT_EQ(FieldReader(body).integer("n", 0, 9), 2);
}

TEST(NamingField, PlacesInsideTheFieldBecomeItsName) {
  const auto naming = [](const char* text) {
    return refusal([&] { naming_field("messages", [&] { fail(ErrorCode::kUsage, "{}", text); }); });
  };
  EXPECT_EQ(naming("messages[2].role: must be known").param, "messages[2].role");
  EXPECT_EQ(naming("messages[2].role: must be known").message, "Field 'messages[2].role': must be known");
  EXPECT_EQ(naming("messagesx: odd").param, "messages");
  EXPECT_EQ(naming("odd").message, "Field 'messages': odd");
}

TEST(Describe, LongTextsAreCutAtACharacter) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "é";
  const std::string shown = describe(JsonValue::string(text));
  EXPECT_LT(shown.size(), 80u);
  EXPECT_TRUE(utf8_valid(shown));
}

}  // namespace
}  // namespace gem::server
