// What clients are told of failures inside (distributed.md 7.5).
#include "server/api/api_error.h"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::api {
namespace {

TEST(ApiErrors, ALostStageIsNamedInFieldsOfItsOwn) {
  const auto place = std::make_shared<const StagePlace>(StagePlace{1, "stage-1", 7});
  const ApiError lost = error_of({ErrorKind::stage_lost, "[pipeline] stage 1 (node stage-1, 10.0.0.2:1): gone", place});
  EXPECT_EQ(lost.status, 503);
  const Json json = error_json(lost)["error"];
  EXPECT_EQ(json["code"], "stage_unavailable");
  EXPECT_EQ(json["stage"], 1);
  EXPECT_EQ(json["node"], "stage-1");
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["retryable"], true);
  EXPECT_EQ(json["message"], "stage 1 (node stage-1, 10.0.0.2:1): gone");

  const auto between = std::make_shared<const StagePlace>(StagePlace{0, "stage-0", std::nullopt});
  const ApiError late = error_of({ErrorKind::stage_timeout, "[pipeline] late", between});
  EXPECT_EQ(late.status, 504);
  EXPECT_EQ(error_json(late)["error"]["code"], "stage_timeout");
  EXPECT_EQ(error_json(late)["error"]["step"], nullptr);
}

TEST(ApiErrors, OtherFailuresHaveNoStage) {
  const Json wrong = error_json(error_of({ErrorKind::bad_input, "[prompt] wanted text"}))["error"];
  for (const char* const field : {"stage", "node", "step", "retryable"}) EXPECT_FALSE(wrong.contains(field)) << field;
  EXPECT_EQ(error_json(error_of({ErrorKind::unavailable, "[memory] none"}))["error"]["retryable"], true);
}

}  // namespace
}  // namespace weft::api
