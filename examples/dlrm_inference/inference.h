#ifndef GPM_EXAMPLES_DLRM_INFERENCE_INFERENCE_H_
#define GPM_EXAMPLES_DLRM_INFERENCE_INFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../rows.h"
#include "criteo.h"
#include "model.h"

/// Rows of a batch of LoadEmbeddings, at most.
inline constexpr std::size_t kLoadBatch = 1 << 16;

/// How many lines are the first ones, for whose categories there are embeddings: at least 1.
/// @param share of all
std::size_t TrainedLines(std::size_t lines, double share);

/// Puts an embedding there for each value of a category in these lines.
/// @throws std::runtime_error (there are others)
void LoadEmbeddings(std::span<const Impression> impressions, examples::Rows<Embedding>* rows);

struct Predictions {
  std::vector<float> of_clicks;  ///< probabilities
  std::uint64_t missing = 0;     ///< look-ups of embeddings that there are not
  bool operator==(const Predictions&) const = default;
};

/// Finds the embeddings of lines, `batch` lines at once, and predicts from them.
Predictions Predict(std::span<const Impression> impressions, std::size_t batch,
                    examples::Rows<Embedding>* rows);

#endif  // GPM_EXAMPLES_DLRM_INFERENCE_INFERENCE_H_
