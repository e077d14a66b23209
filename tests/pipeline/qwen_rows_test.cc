// The rows of in_proj_qkvz, in_proj_ba and q_proj of Qwen3-Next are grouped by head (Qwen3-Next spec 2.2), the most common
// fault of ports: a checkpoint in which any two segments have changed places must miss the goldens by far.
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;

class RowOrder : public testing::Test {
 protected:
  RowOrder() {
    std::filesystem::copy(fixture(kName), dir_, std::filesystem::copy_options::recursive);
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      std::filesystem::permissions(entry, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    }
  }

  [[nodiscard]] double error() const {
    const auto executor = open_executor(dir_);
    return relative_error(logits_of(*executor, goldens_.ids("p1.ids"), 64), goldens_.floats("p1.logits"));
  }

  // Exchanges segments a and b of `rows` rows each.
  void swap(const std::string& tensor, int64_t rows, int64_t a, int64_t b) const {
    const Inventory inventory = Inventory::scan(dir_, {});
    const std::optional<TensorId> id = inventory.find(tensor);
    ASSERT_TRUE(id.has_value()) << tensor;
    const int64_t bytes = inventory.bytes(*id) / inventory.shape(*id)[0] * rows;
    const int file = ::open((dir_ / inventory.file(*id).name).c_str(), O_RDWR);
    ASSERT_GE(file, 0);
    std::vector<std::byte> first(static_cast<size_t>(bytes));
    std::vector<std::byte> second(first.size());
    const int64_t at_a = inventory.begin(*id) + a * bytes;
    const int64_t at_b = inventory.begin(*id) + b * bytes;
    EXPECT_EQ(::pread(file, first.data(), first.size(), at_a), bytes);
    EXPECT_EQ(::pread(file, second.data(), second.size(), at_b), bytes);
    EXPECT_EQ(::pwrite(file, first.data(), first.size(), at_b), bytes);
    EXPECT_EQ(::pwrite(file, second.data(), second.size(), at_a), bytes);
    ::close(file);
  }

  void expect_swaps_seen(const std::string& tensor, int64_t rows, int64_t segments) const {
    ASSERT_LT(error(), 1e-4);
    for (int64_t a = 0; a < segments; ++a) {
      for (int64_t b = a + 1; b < segments; ++b) {
        swap(tensor, rows, a, b);
        EXPECT_GT(error(), 1e-3) << tensor << ": segments " << a << " and " << b;
        swap(tensor, rows, a, b);
      }
    }
    EXPECT_LT(error(), 1e-4);
  }

 private:
  static constexpr const char* kName = "tiny-qwen3-next-8l";
  TemporaryFolder folder_;
  std::filesystem::path dir_ = folder_.path() / "model";
  Goldens goldens_{fixture(kName) / "goldens64.safetensors"};
};

// Two key heads of q, k, v v, z z, all of 16 rows.
TEST_F(RowOrder, InProjQkvz) { expect_swaps_seen("model.layers.0.linear_attn.in_proj_qkvz.weight", 16, 12); }

// Two key heads of b b a a.
TEST_F(RowOrder, InProjBa) { expect_swaps_seen("model.layers.0.linear_attn.in_proj_ba.weight", 1, 8); }

// Four heads of 32 query rows and 32 gate rows.
TEST_F(RowOrder, QProj) { expect_swaps_seen("model.layers.3.self_attn.q_proj.weight", 32, 8); }

}  // namespace
}  // namespace weft
