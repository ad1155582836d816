#include "text/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "text/byte_tokenizer.h"

namespace heed {
namespace {

constexpr int64_t kBytes = 256, kMostTokens = 1 << 20;
constexpr size_t kLongestPiece = 256;
constexpr size_t kWave = 32;  // texts that are counted before their counts are summed
constexpr int64_t kLeastCount = 2;

using Counts = std::unordered_map<std::string_view, int64_t>;

void CountPieces(std::string_view text, Counts* counts) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(PieceEnd(SplitPattern::kGpt2, text, at),
                                std::min(text.size(), at + kLongestPiece));
    if (end - at > 1) ++(*counts)[text.substr(at, end - at)];
    at = end;
  }
}

// The pieces of all texts with their counts, in the order of their bytes.
std::vector<std::pair<std::string_view, int64_t>> CountAll(
    std::span<const std::string_view> texts) {
  Counts total;
  for (size_t first = 0; first < texts.size(); first += kWave) {
    std::vector<Counts> wave(std::min(kWave, texts.size() - first));
    ParallelFor(static_cast<int64_t>(wave.size()),
                [&](int64_t i) { CountPieces(texts[first + i], &wave[i]); });
    for (const Counts& counts : wave) {
      for (const auto& [piece, count] : counts) total[piece] += count;
    }
  }
  std::vector<std::pair<std::string_view, int64_t>> sorted(total.begin(), total.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

struct Pair {
  int32_t left = 0, right = 0;
  int64_t count = 0;
  std::vector<int32_t> words;  // where it was met; it may be gone from some
};

// A pair as it stood when it was put into the queue.
struct Candidate {
  int64_t count;
  int32_t left, right;
  int32_t pair;  // index

  bool operator<(const Candidate& other) const {
    return std::tie(count, other.left, other.right) < std::tie(other.count, left, right);
  }
};

class Trainer {
 public:
  explicit Trainer(std::span<const std::pair<std::string_view, int64_t>> pieces) {
    for (int byte = 0; byte < kBytes; ++byte) order_[byte] = static_cast<uint8_t>(byte);
    std::sort(order_.begin(), order_.end(),
              [](uint8_t a, uint8_t b) { return ByteSymbol(a) < ByteSymbol(b); });
    std::array<int32_t, kBytes> id_of;
    for (int id = 0; id < kBytes; ++id) {
      id_of[order_[id]] = id;
      v_.tokens.emplace_back(1, static_cast<char>(order_[id]));
    }
    for (const auto& [piece, count] : pieces) {
      Word& word = words_.emplace_back();
      word.count = count;
      for (const char byte : piece) word.symbols.push_back(id_of[static_cast<uint8_t>(byte)]);
    }
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& symbols = words_[w].symbols;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        Add(symbols[i], symbols[i + 1], static_cast<int32_t>(w), words_[w].count);
      }
    }
    QueueGrown();
  }

  BpeVocabulary Run(int64_t vocab_size) {
    while (static_cast<int64_t>(v_.tokens.size()) < vocab_size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Pair& pair = pairs_[best.pair];
      if (pair.count < kLeastCount) continue;
      if (pair.count != best.count) {
        queue_.push({pair.count, pair.left, pair.right, best.pair});
        continue;
      }
      Merge(best.pair);
    }
    return std::move(v_);
  }

 private:
  int32_t Index(int32_t left, int32_t right) {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    const auto [entry, is_new] = index_.try_emplace(key, static_cast<int32_t>(pairs_.size()));
    if (is_new) pairs_.push_back({left, right});
    return entry->second;
  }

  void Add(int32_t left, int32_t right, int32_t word, int64_t count) {
    const int32_t index = Index(left, right);
    Pair& pair = pairs_[index];
    if (pair.count == 0) grown_.push_back(index);
    pair.count += count;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  }

  // Counts only grow for pairs of the newest token, in the merge that makes it.
  void QueueGrown() {
    for (const int32_t index : grown_) {
      const Pair& pair = pairs_[index];
      if (pair.count >= kLeastCount) queue_.push({pair.count, pair.left, pair.right, index});
    }
    grown_.clear();
  }

  void Merge(int32_t index) {
    const int32_t left = pairs_[index].left, right = pairs_[index].right;
    const auto id = static_cast<int32_t>(v_.tokens.size());
    v_.merges.push_back({left, right, id, static_cast<uint32_t>(v_.merges.size())});
    v_.tokens.push_back(v_.tokens[left] + v_.tokens[right]);
    const std::vector<int32_t> words = std::move(pairs_[index].words);
    for (const int32_t word : words) MergeIn(word, left, right, id);
    pairs_[index].count = 0;
    QueueGrown();
  }

  // Replaces the pair in one word and keeps the counts of its neighbours right.
  void MergeIn(int32_t w, int32_t left, int32_t right, int32_t id) {
    std::vector<int32_t>& symbols = words_[w].symbols;
    const int64_t count = words_[w].count;
    size_t kept = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      const bool here = i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right;
      if (!here) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        pairs_[Index(symbols[kept - 1], left)].count -= count;
        Add(symbols[kept - 1], id, w, count);
      }
      if (i + 2 < symbols.size()) {
        pairs_[Index(right, symbols[i + 2])].count -= count;
        Add(id, symbols[i + 2], w, count);
      }
      symbols[kept++] = id;
      ++i;
    }
    symbols.resize(kept);
  }

  BpeVocabulary v_;
  std::array<uint8_t, kBytes> order_;
  std::vector<Word> words_;
  std::vector<Pair> pairs_;
  std::unordered_map<uint64_t, int32_t> index_;
  std::vector<int32_t> grown_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

Result<BpeVocabulary> TrainBpe(std::span<const std::string_view> texts, int64_t vocab_size) {
  if (vocab_size < kBytes || vocab_size > kMostTokens) {
    return BadRequest(
        "vocab_size", fmt::format("{}", vocab_size),
        fmt::format("{} to {}: the bytes, then one token per merge", kBytes, kMostTokens));
  }
  return Trainer(CountAll(texts)).Run(vocab_size);
}

}  // namespace heed
