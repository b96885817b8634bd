#include "model.h"

#include <algorithm>
#include <cmath>

#include "../rows.h"

Embedding InitialEmbedding(std::uint64_t key) {
  Embedding embedding;
  std::uint64_t state = examples::Mix(key);
  for (float& weight : embedding) {
    weight = static_cast<float>(examples::Uniform(examples::Mix(++state)) - 0.5);
  }
  return embedding;
}

Layer::Layer(std::size_t inputs, std::size_t outputs, std::uint64_t seed)
    : weights_((inputs + 1) * outputs) {
  const double scale = 2 / std::sqrt(static_cast<double>(inputs));
  std::uint64_t state = examples::Mix(seed);
  for (float& weight : weights_) {
    weight = static_cast<float>((examples::Uniform(examples::Mix(++state)) - 0.5) * scale);
  }
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
