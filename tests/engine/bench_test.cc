// Records of `weft bench`. What they measure has no expected value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/worker_pool.h"
#include "engine/bench/mem.h"
#include "engine/bench/record.h"

namespace weft::bench {
namespace {

using ::testing::HasSubstr;

TEST(BenchRecord, StatesMedianSpreadAndShare) {
  EXPECT_EQ(median({3, 1, 2}), 2.0);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  Record record{"mem", {{"read", "GB/s", {10, 30, 20}, {}}}, {{"buffer_bytes", 7}}, {"a note"}};
  record.figures.push_back({"decode", "GB/s", {16, 14, 15}, record.figures[0].as_limit(), {{"us", 2.5}}});
  const Json json = record.to_json("abc", "weft bench mem");
  EXPECT_EQ(json.at("bench"), "mem");
  EXPECT_EQ(json.at("commit"), "abc");
  EXPECT_EQ(json.at("command"), "weft bench mem");
  EXPECT_EQ(json.at("buffer_bytes"), 7);
  EXPECT_FALSE(json.at("machine").at("cpu").get<std::string>().empty());
  EXPECT_EQ(json.at("figures"),
            Json::parse(R"([{"name": "read", "unit": "GB/s", "median": 20.0, "spread": [10.0, 30.0], "repeats": 3},
                            {"name": "decode", "unit": "GB/s", "median": 15.0, "spread": [14.0, 16.0], "repeats": 3,
                             "limit": {"name": "read", "value": 20.0}, "share": 0.75, "us": 2.5}])"));
  EXPECT_THAT(record.to_text(), HasSubstr("75.0 % of 20.0 (read)"));
  EXPECT_THAT(record.to_text(), HasSubstr("note: a note"));
}

TEST(BenchMem, CountsWhatItDoes) {
  WorkerPool pool(2);
  for (const Figure& figure : {read_bandwidth(pool, 8 << 20, 2), copy_bandwidth(pool, 8 << 20, 2), peak_arithmetic(pool, 2)}) {
    EXPECT_EQ(figure.samples.size(), 2U) << figure.name;
    EXPECT_GT(figure.value(), 0.0) << figure.name;
  }
}

}  // namespace
}  // namespace weft::bench
