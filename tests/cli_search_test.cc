// gpmstore create --attribute and gpmstore search.

#include "tests/cli_test_util.h"

namespace gpm {
namespace {

class CliSearchTest : public CliTest {
 protected:
  /// Items 1 to 6 with sessions 1, 2, 1, 2, ... and models 1 to 6.
  std::string MakePool(const std::string& options = "") {
    const std::string pool = NewPath();
    EXPECT_EQ(Run("create " + pool +
                  " --value-size 12 --attribute session:0:8 --attribute model:8:4 " + options)
                  .status,
              0);
    for (int i = 1; i <= 6; ++i) {
      const std::string session = i % 2 == 0 ? "02" : "01";
      EXPECT_EQ(Run("put " + pool + " " + std::to_string(i) + " 0x" + session + "000000000000000" +
                    std::to_string(i))
                    .status,
                0);
    }
    return pool;
  }
};

TEST_F(CliSearchTest, WritesWhatMatches) {
  for (const char* const options : {"", "--shards 2"}) {
    const std::string pool = MakePool(options);
    EXPECT_EQ(Run("search " + pool + " 'session = 1'").out, "1\n3\n5\n");
    EXPECT_EQ(Run("search " + pool + " 'session=2 and model<0x6'").out, "2\n4\n");
    EXPECT_EQ(Run("search " + pool + " 'model > 4' --values").out,
              "5\t0x010000000000000005000000\n6\t0x020000000000000006000000\n");
    EXPECT_EQ(Run("search " + pool + " 'session <= 1' --count").out, "3\n");
    EXPECT_EQ(Run("search " + pool + " ''").out, "1\n2\n3\n4\n5\n6\n");
    const Ran limited = Run("search " + pool + " 'model >= 2' --limit 2");
    EXPECT_EQ(limited.status, 0);
    EXPECT_EQ(limited.out, "2\n3\n");
    EXPECT_EQ(limited.err, "gpmstore: 2 of 5 items that match; see --limit\n");
    EXPECT_EQ(Run("search " + pool + " 'model >= 2' --limit 5").err, "");
    const Ran none = Run("search " + pool + " 'session = 3' --count");
    EXPECT_EQ(none.status, 1);
    EXPECT_EQ(none.out, "0\n");
  }
}

TEST_F(CliSearchTest, InfoShowsAttributes) {
  const std::string pool = MakePool();
  EXPECT_NE(Run("info " + pool).out.find("session (8 bytes at 0), model (4 bytes at 8)"),
            std::string::npos);
  const Json attributes = RunJson("info " + pool)["attributes"];
  EXPECT_EQ(attributes, Json::parse(R"([{"name": "session", "offset": 0, "bytes": 8},
                                        {"name": "model", "offset": 8, "bytes": 4}])"));
  const std::string file = NewPath();
  const std::string restored = NewPath();
  EXPECT_EQ(Run("snapshot " + pool + " " + file).status, 0);
  EXPECT_EQ(Run("restore --executor cpu " + file + " " + restored).status, 0);
  EXPECT_EQ(RunJson("info " + restored)["attributes"], attributes);
  EXPECT_EQ(Run("compact " + restored).status, 0);
  EXPECT_EQ(Run("search " + restored + " 'model = 4'").out, "4\n");
  EXPECT_EQ(Run("check " + restored).status, 0);

  const std::string folder = MakePool("--shards 2");
  EXPECT_EQ(Run("reshard " + folder + " --shards 3").status, 0);
  EXPECT_EQ(Run("search " + folder + " 'session = 2'").out, "2\n4\n6\n");
}

TEST_F(CliSearchTest, RefusesWhatIsWrong) {
  const std::string pool = MakePool();
  ExpectRefused("search " + pool, "QUERY");
  ExpectRefused("search " + pool + " 'age = 1'", "no attribute 'age'; the pool has session, model");
  ExpectRefused("search " + pool + " 'session ~ 1'", "one of = < <= > >=");
  ExpectRefused("search " + pool + " 'session = 1' --count --values", "--count");
  ExpectRefused("search " + pool + " 'session = 1' --limit -1", "limit");
  ExpectRefused("search " + NewPath() + " 'session = 1'", "no such");
  const std::string none = NewPath();
  ASSERT_EQ(Run("create " + none).status, 0);
  ExpectRefused("search " + none + " 'session = 1'", "the pool has none");
  for (const auto& [attribute, reason] : std::vector<std::pair<std::string, std::string>>{
           {"session", "NAME:OFFSET:BYTES"},
           {"session:0", "NAME:OFFSET:BYTES"},
           {"session:0:8:1", "NAME:OFFSET:BYTES"},
           {"session:-1:8", "NAME:OFFSET:BYTES"},
           {"session:x:8", "NAME:OFFSET:BYTES"},
           {":0:8", "attribute name ''"},
           {"1:0:8", "attribute name '1'"},
           {"session:0:2", "4 or 8"},
           {"session:121:8", "not within values of 128 bytes"},
           {"session:0:8 --attribute session:8:8", "two attributes"},
       }) {
    const std::string path = NewPath();
    ExpectRefused("create " + path + " --attribute " + attribute, reason);
    EXPECT_FALSE(std::filesystem::exists(path)) << attribute;
  }
  std::string many;
  for (int i = 0; i < 9; ++i) many += " --attribute a" + std::to_string(i) + ":0:4";
  ExpectRefused("create " + NewPath() + many, "9 attributes");
}

}  // namespace
}  // namespace gpm
