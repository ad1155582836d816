// builtin:stories: very short stories drawn from a small grammar, so that the least loss any model
// can reach is known exactly. docs/stories.md derives every number.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/batch.h"

namespace heed {

// Beginnings that the stories know.
inline constexpr std::array<std::string_view, 4> kStoryPrompts = {
    "Once upon a time", "There once lived a", "One sunny morning", "The fox"};

// The grammar unfolded into an automaton: a point is a place where something is chosen, together
// with what later sentences will mention again; an edge is one choice and all the text that
// follows from it, up to the next point. No text of an edge begins with that of another edge of
// the same point, so a text tells its choices: the map from choices to text is injective.
class StoryGrammar {
 public:
  struct Edge {
    std::string_view text;  // never empty; the last one of a story ends with a blank line
    int32_t to = 0;         // point; kStart after the end of a story
  };
  struct Point {
    int32_t first_edge = 0;
    int32_t edges = 0;  // all equally likely
    double visits = 0;  // expected number in one story
  };
  static constexpr int32_t kStart = 0;

  static const StoryGrammar& Get();

  std::span<const Point> points() const { return points_; }
  std::span<const Edge> edges() const { return edges_; }

  // Story number `index` of `seed`, with the blank line that ends it.
  std::string Story(uint64_t seed, uint32_t index) const;
  // Whole stories from number 0 on, of at least `bytes` bytes together. Printable ASCII and '\n'.
  std::string Text(uint64_t seed, int64_t bytes) const;

  // Exact, in nats and characters: entropy of a story, its expected length, and their ratio, the
  // entropy per character of endless stories.
  double StoryEntropy() const;
  double StoryLength() const;
  double EntropyPerCharacter() const { return StoryEntropy() / StoryLength(); }

  // -log p of each character given all characters before it; `text` begins with a story's start.
  // Infinite from the first character on that no story has there.
  std::vector<double> Surprisals(std::string_view text) const;
  // -log p of window[1], window[2], ... given the window's characters before it and nothing else:
  // the window begins anywhere in endless stories. window.size() - 1 numbers.
  std::vector<double> WindowSurprisals(std::string_view window) const;

 private:
  friend class StoryBuilder;
  StoryGrammar() = default;

  std::vector<std::string> texts_;  // what edges point into
  std::vector<Point> points_;
  std::vector<Edge> edges_;
};

// Stories in tokens of one character each.
class StoryBatches : public TextBatches {
 public:
  // `store` holds the tokens of `text`, one per character.
  StoryBatches(std::string text, TokenStore store, Split split, int64_t block_size,
               int64_t vocab_size);

  // -log p of the windows' targets per target, for a reader who knows the grammar and sees, as the
  // model does, only the window: exact for this text. Standard error over windows.
  std::optional<LossFloor> loss_floor(int64_t wanted) const override;
  // The same for a reader of the whole text before each target. Standard error over stories.
  LossFloor FullContextFloor() const;

 private:
  std::string text_;
  int64_t val_begin_;
};

}  // namespace heed
