#include "verify/diagnose/attention_structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace heed {
namespace {

using Numbers = std::vector<double>;

// Two arrays of [outer, T, width], the same shape.
class Comparison {
 public:
  Comparison(const TheirTensor& tensor, const Numbers& ours, double floor)
      : theirs_(tensor.values), ours_(ours), shape_(tensor.shape), floor_(floor) {
    width_ = shape_.back();
    T_ = shape_[shape_.size() - 2];
    rows_ = static_cast<int64_t>(ours.size()) / width_;
  }

  std::vector<std::string> Sentences() {
    Scaling();
    Shift();
    BatchRows();
    Heads();
    Channels();
    Permutations();
    Lengths();
    return std::move(sentences_);
  }

 private:
  template <class... Args>
  void Say(fmt::format_string<Args...> format, Args&&... args) {
    sentences_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  bool Agree(const Numbers& a, const Numbers& b) const { return Residual(a, b) <= floor_; }

  // theirs = c · ours.
  void Scaling() {
    if (const auto factor = FactorBetween(theirs_, ours_, floor_)) {
      Say("theirs is the right result times {:.4g}: everything before the last scaling is right",
          *factor);
    }
  }

  // theirs - ours is one vector for all rows.
  void Shift() {
    Numbers mean(width_);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < width_; ++c) {
        mean[c] += (theirs_[r * width_ + c] - ours_[r * width_ + c]) / static_cast<double>(rows_);
      }
    }
    Numbers shifted = ours_;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < width_; ++c) shifted[r * width_ + c] += mean[c];
    }
    if (Agree(theirs_, shifted)) {
      Say("theirs is the right result plus one vector, the same in every row: a bias");
    }
  }

  // Which of `count` parts agree, where element i belongs to part `part(i)`.
  template <class Part>
  void Parts(const char* name, int64_t count, Part part) {
    if (count < 2) return;
    std::vector<Numbers> theirs(count), ours(count);
    for (size_t i = 0; i < ours_.size(); ++i) {
      const int64_t p = part(static_cast<int64_t>(i));
      theirs[p].push_back(theirs_[i]);
      ours[p].push_back(ours_[i]);
    }
    std::vector<int64_t> equal;
    for (int64_t p = 0; p < count; ++p) {
      if (Agree(theirs[p], ours[p])) equal.push_back(p);
    }
    if (equal.empty()) return;
    Say("{} of {} {} agree: {}", equal.size(), count, name, fmt::join(equal, ", "));
  }

  void BatchRows() {
    const int64_t B = shape_[0], each = static_cast<int64_t>(ours_.size()) / B;
    Parts("batch rows", B, [each](int64_t i) { return i / each; });
  }

  void Heads() {
    if (shape_.size() != 4) return;
    const int64_t H = shape_[1], each = T_ * width_;
    Parts("heads", H, [H, each](int64_t i) { return i / each % H; });
  }

  void Channels() {
    if (shape_.size() != 3) return;
    Parts("channels", width_, [this](int64_t i) { return i % width_; });
  }

  // Every row of theirs is another row of ours; every channel another channel.
  void Permutations() {
    if (const auto map = Match(rows_, width_, 1)) {
      Say("theirs holds the right rows in another order: row {} of {} comes from row {}",
          map->first, rows_, map->second);
    }
    if (const auto map = Match(width_, 1, width_)) {
      Say("theirs holds the right channels in another order: channel {} is channel {}", map->first,
          map->second);
    }
  }

  // When theirs is a permutation of our `count` slices (element j of slice s lies at
  // s · slice_step + j · step), the first pair that moved.
  std::optional<std::pair<int64_t, int64_t>> Match(int64_t count, int64_t slice_step,
                                                   int64_t step) const {
    constexpr int64_t kMost = 2048;
    const int64_t length = static_cast<int64_t>(ours_.size()) / count;
    if (count > kMost) return std::nullopt;
    const auto slice = [&](const Numbers& from, int64_t s) {
      Numbers out(length);
      for (int64_t j = 0; j < length; ++j) out[j] = from[s * slice_step + j * step];
      return out;
    };
    std::vector<Numbers> ours(count);
    for (int64_t s = 0; s < count; ++s) ours[s] = slice(ours_, s);
    std::optional<std::pair<int64_t, int64_t>> moved;
    std::vector<bool> used(count);
    for (int64_t s = 0; s < count; ++s) {
      const Numbers theirs = slice(theirs_, s);
      int64_t source = -1;
      for (int64_t o = 0; o < count && source < 0; ++o) {
        if (!used[o] && Agree(theirs, ours[o])) source = o;
      }
      if (source < 0) return std::nullopt;
      used[source] = true;
      if (source != s && !moved) moved = {s, source};
    }
    return moved;
  }

  // Rows of the same length, or of the right direction.
  void Lengths() {
    Numbers theirs(rows_), ours(rows_);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < width_; ++c) {
        theirs[r] += theirs_[r * width_ + c] * theirs_[r * width_ + c];
        ours[r] += ours_[r * width_ + c] * ours_[r * width_ + c];
      }
    }
    if (width_ > 1 && Agree(theirs, ours)) {
      Say("every row has the right length: a rotation or a permutation of channels");
    }
  }

  const Numbers& theirs_;
  const Numbers& ours_;
  const std::vector<int64_t>& shape_;
  const double floor_;
  int64_t T_ = 0, width_ = 0, rows_ = 0;
  std::vector<std::string> sentences_;
};

}  // namespace

std::vector<std::string> StructureOfError(const AttentionDump& dump,
                                          const std::vector<double>& ours, double floor) {
  const TheirTensor& last = dump.theirs.back();
  return Comparison(last, ours, floor).Sentences();
}

}  // namespace heed
