#include "inference.h"

#include <algorithm>
#include <stdexcept>

std::size_t TrainedLines(std::size_t lines, double share) {
  return static_cast<std::size_t>(std::max(1.0, share * static_cast<double>(lines)));
}

void LoadEmbeddings(std::span<const Impression> impressions, examples::Rows<Embedding>* rows) {
  std::vector<std::uint64_t> keys;
  for (const Impression& impression : impressions) {
    keys.insert(keys.end(), impression.keys.begin(), impression.keys.end());
  }
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::vector<Embedding> embeddings;
  const auto for_each_batch = [&](const auto& use) {
    for (std::size_t first = 0; first < keys.size(); first += kLoadBatch) {
      const auto some = std::span(keys).subspan(first, std::min(kLoadBatch, keys.size() - first));
      embeddings.resize(some.size());
      use(some);
    }
  };
  if (rows->items() != 0) {  // before anything is written
    std::uint64_t missing = 0;
    for_each_batch([&](auto some) { missing += rows->Find(some, embeddings); });
    if (rows->items() + missing != keys.size()) {
      throw std::runtime_error("the pool has other items, too: it is of other lines");
    }
  }
  for_each_batch([&](auto some) {
    std::ranges::transform(some, embeddings.begin(), InitialEmbedding);
    rows->Write(some, embeddings);
  });
}

Predictions Predict(std::span<const Impression> impressions, std::size_t batch,
                    examples::Rows<Embedding>* rows) {
  const Model model;
  Predictions predictions;
  predictions.of_clicks.reserve(impressions.size());
  std::vector<std::uint64_t> keys;
  std::vector<Embedding> embeddings(batch * kCategories);
  for (std::size_t first = 0; first < impressions.size(); first += batch) {
    const auto some = impressions.subspan(first, std::min(batch, impressions.size() - first));
    keys.clear();
    for (const Impression& impression : some) {
      keys.insert(keys.end(), impression.keys.begin(), impression.keys.end());
    }
    predictions.missing += rows->Find(keys, std::span(embeddings).first(keys.size()));
    for (std::size_t i = 0; i < some.size(); ++i) {
      const std::span<const Embedding, kCategories> own(&embeddings[i * kCategories], kCategories);
      predictions.of_clicks.push_back(model.Predict(some[i], own));
    }
  }
  return predictions;
}
