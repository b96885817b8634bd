#ifndef GPM_EXAMPLES_DLRM_INFERENCE_MODEL_H_
#define GPM_EXAMPLES_DLRM_INFERENCE_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "criteo.h"

inline constexpr std::size_t kDimensions = 32;
/// Of a value of a category. 128 bytes, as GPHash's values (FAST 2025, section 4.1).
using Embedding = std::array<float, kDimensions>;

/// What stands for trained weights: it follows from the key alone.
Embedding InitialEmbedding(std::uint64_t key);

/// A layer all of whose inputs and outputs are joined.
class Layer {
 public:
  /// Weights that look random and follow from the seed.
  Layer(std::size_t inputs, std::size_t outputs, std::uint64_t seed);
  /// @param outputs as many as the layer has; those below 0 become 0 if `rectifies`
  void Apply(std::span<const float> inputs, bool rectifies, std::span<float> outputs) const;

 private:
  std::vector<float> weights_;  ///< those of an input side by side; the biases behind them
};

/// DLRM (Naumov et al. 2019): numbers go through two layers, the scalar products of what comes out
/// and of the embeddings, each with each, through two more. Its weights are not trained: what is
/// shown is what the embeddings cost. Thread safety: const.
class Model {
 public:
  /// @return the probability of a click
  float Predict(const Impression& impression,
                std::span<const Embedding, kCategories> embeddings) const;

 private:
  static constexpr std::size_t kVectors = kCategories + 1;
  static constexpr std::size_t kProducts = kVectors * (kVectors - 1) / 2;
  static constexpr std::size_t kHidden = 64;
  Layer bottom_hidden_{kNumbers, kHidden, 1};
  Layer bottom_{kHidden, kDimensions, 2};
  Layer top_hidden_{kDimensions + kProducts, kHidden, 3};
  Layer top_{kHidden, 1, 4};
};

#endif  // GPM_EXAMPLES_DLRM_INFERENCE_MODEL_H_
