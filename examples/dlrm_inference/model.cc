#include "model.h"

#include <algorithm>
#include <cmath>

namespace {

/// A generator of random numbers whose whole state is a word (splitmix64, by S. Vigna).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0xd1342543de82ef95) {}
  /// From -0.5 to 0.5.
  float Draw() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return static_cast<float>(x >> 40) * 0x1p-24F - 0.5F;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

Embedding InitialEmbedding(std::uint64_t key) {
  Random random(key);
  Embedding embedding;
  for (float& weight : embedding) weight = random.Draw();
  return embedding;
}

Layer::Layer(std::size_t inputs, std::size_t outputs, std::uint64_t seed)
    : weights_((inputs + 1) * outputs) {
  const float scale = 2 / std::sqrt(static_cast<float>(inputs));
  Random random(seed);
  for (float& weight : weights_) weight = random.Draw() * scale;
}

void Layer::Apply(std::span<const float> inputs, bool rectifies, std::span<float> outputs) const {
  const float* weights = weights_.data();
  const float* const biases = weights + inputs.size() * outputs.size();
  std::copy_n(biases, outputs.size(), outputs.begin());
  for (const float input : inputs) {
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] += input * weights[i];
    weights += outputs.size();
  }
  if (!rectifies) return;
  for (float& output : outputs) output = std::max(output, 0.0F);
}

float Model::Predict(const Impression& impression,
                     std::span<const Embedding, kCategories> embeddings) const {
  std::array<float, kNumbers> numbers;
  std::ranges::transform(impression.numbers, numbers.begin(), [](std::int32_t number) {
    return std::log1p(static_cast<float>(std::max(number, 0)));
  });
  std::array<float, kHidden> hidden;
  bottom_hidden_.Apply(numbers, true, hidden);
  std::array<float, kDimensions + kProducts> features;
  const std::span<float, kDimensions> dense(features.data(), kDimensions);
  bottom_.Apply(hidden, true, dense);

  float* product = features.data() + kDimensions;
  const auto multiply = [](const auto& one, const auto& other) {
    float sum = 0;
    for (std::size_t i = 0; i < kDimensions; ++i) sum += one[i] * other[i];
    return sum;
  };
  for (std::size_t i = 0; i < kCategories; ++i) {
    *product++ = multiply(embeddings[i], dense);
    for (std::size_t j = 0; j < i; ++j) *product++ = multiply(embeddings[i], embeddings[j]);
  }
  top_hidden_.Apply(features, true, hidden);
  float score = 0;
  top_.Apply(hidden, false, std::span(&score, 1));
  return 1 / (1 + std::exp(-score));
}
