// DLRM inference with embeddings that are in the store, and with the same in a map. See --help.

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "../rows.h"
#include "../store_options.h"
#include "criteo.h"
#include "inference.h"

namespace {

struct Arguments {
  std::string file;
  std::size_t lines = 100'000;
  std::uint64_t seed = 1;
  std::string write_lines;
  double trained = 0.9;
  std::size_t batch = 128;
  unsigned passes = 1;
  bool check = true;
  examples::StoreOptions store;
};

Predictions RunOn(examples::Rows<Embedding>* rows, std::span<const Impression> impressions,
                  const Arguments& arguments) {
  LoadEmbeddings(impressions.first(TrainedLines(impressions.size(), arguments.trained)), rows);
  for (unsigned pass = 1; pass < arguments.passes; ++pass) {
    Predict(impressions, arguments.batch, rows);
  }
  rows->StartMeasuring();
  const auto start = std::chrono::steady_clock::now();
  Predictions predictions = Predict(impressions, arguments.batch, rows);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  rows->Print();
  std::printf("  with the dense layers: %.0f predictions/s\n",
              static_cast<double>(impressions.size()) / taken.count());
  return predictions;
}

bool Run(const Arguments& arguments) {
  examples::RequireOtherFile("--write-lines", arguments.write_lines,
                             {arguments.file, arguments.store.pool});
  const std::vector<Impression> impressions = arguments.file.empty()
                                                  ? DrawCriteo(arguments.lines, arguments.seed)
                                                  : ReadCriteo(arguments.file, arguments.lines);
  std::printf("%zu lines\n", impressions.size());
  if (!arguments.write_lines.empty()) WriteCriteo(impressions, arguments.write_lines);
  examples::StoreRows<Embedding> store(arguments.store.pool, arguments.store.open);
  const Predictions predictions = RunOn(&store, impressions, arguments);
  const auto& clicks = predictions.of_clicks;
  std::printf(
      "mean probability of a click: %.9f; %llu embeddings were not there\n",
      std::accumulate(clicks.begin(), clicks.end(), 0.0) / static_cast<double>(clicks.size()),
      static_cast<unsigned long long>(predictions.missing));
  if (!arguments.check) return true;
  examples::MapRows<Embedding> map;
  const Predictions right = RunOn(&map, impressions, arguments);
  const bool is_right = predictions == right;
  std::printf("predictions are %s those of the map\n",
              is_right ? "right: bit by bit" : "WRONG: not");
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Inference of a recommendation model (DLRM) with its embeddings in the store, on data in "
      "Criteo's format: 26 look-ups for each line, in batches, then small dense layers on the CPU, "
      "in one thread. Exits with 1 if predictions are not those with a std::unordered_map in the "
      "store's place.",
      "dlrm_inference");
  Arguments arguments;
  auto* const file = app.add_option("lines-of", arguments.file,
                                    "Data in Criteo's format (train.txt of Kaggle's Display "
                                    "Advertising Challenge); else lines are drawn")
                         ->option_text("FILE");
  app.add_option("--lines", arguments.lines, "Lines to draw, or to read at most; default 100000")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", arguments.seed, "Of lines that are drawn; default 1")->excludes(file);
  app.add_option("--write-lines", arguments.write_lines, "Write the lines in Criteo's format, too")
      ->option_text("FILE");
  app.add_option("--trained", arguments.trained,
                 "Share of the lines, the first ones, for whose categories there are embeddings; "
                 "in the others zeros stand for those that there are not. Default 0.9")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--batch", arguments.batch, "Lines of a batch, with 26 look-ups each; default 128")
      ->check(CLI::Range(1u, 1u << 24));
  app.add_option(
         "--passes", arguments.passes,
         "Times that the lines are gone through: the last is measured, before it the cache, "
         "if there is one, is filled; default 1")
      ->check(CLI::Range(1u, 1000u));
  app.add_flag("!--no-check", arguments.check, "Compare the predictions with nothing");
  examples::AddStoreOptions(app, &arguments.store);
  return examples::Main(app, argc, argv, [&] { return Run(arguments); });
}
