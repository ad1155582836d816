#include "data/stories.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/parallel.h"
#include "base/random.h"

namespace heed {
namespace {

// What later sentences mention again.
enum Variable { kHero, kThing, kFriend, kVariables };

struct WordList {
  std::string_view name;
  std::string_view words;  // separated by '|'
  int variable = -1;       // that remembers the word, or -1
  int first_value = 0;     // the first word's value
};

// Heroes below kGirls are girls.
constexpr int kGirls = 5;

// Few lists, used in several sentences: what a model learns of a word serves everywhere.
constexpr WordList kLists[] = {
    {"girl", "Lily|Mia|Nora|Ruby|Zoe", kHero, 0},
    {"boy", "Tom|Ben|Max|Finn|Oscar", kHero, kGirls},
    {"new thing", "ball|kite|drum|ring|key|lamp|hat|cup", kThing},
    {"new friend", "fox|bear|owl|duck|cat|dog", kFriend},
    {"nature",
     "shy|kind|brave|happy|clever|quiet|funny|lazy|proud|polite|sleepy|merry|hungry|tired|lonely|"
     "wise"},
    {"look", "red|blue|green|yellow|silver|golden|white|black|pink|tiny|shiny|round"},
    {"place", "lake|hill|mill|bridge|beach|farm|cave|pond|tree|wall|tower|garden"},
    {"food", "cheese|bread|honey|soup|cake|jam|apples|plums|milk|nuts|pie|rice"},
    {"did", "laughed|danced|smiled|cheered|clapped|sang|waved|bowed|jumped|nodded|hopped|yawned"},
    {"kin", "mother|father|uncle|aunt"},
    {"number", "two|three|four|five|six|seven"},
    {"pets", "goats|hens|mice|frogs|lambs|geese"},
    {"weather", "sunny|rainy|windy|foggy|snowy|cold|warm|stormy"},
    {"daytime", "day|morning|afternoon|evening"},
    {"until", "dark|noon|sunset|midnight"},
};

struct Sentence {
  std::string_view section;
  std::string_view text;  // {word list} chooses, {Hero} and the like mention again
  std::string_view next;  // section; empty at the end of a story
};

// Sections in the order of the story; one of a section's sentences is told. Each begins with words
// and not with a choice.
constexpr Sentence kSentences[] = {
    {"opening", "Once upon a time there was a {nature} ", "who"},
    {"opening", "There once lived a {nature} ", "who"},
    {"opening", "In a {look} house near a {place} lived a {nature} ", "who"},
    {"who", "girl named {girl}. ", "home"},
    {"who", "boy named {boy}. ", "home"},
    {"home", "{He} liked {food}. ", "day"},
    {"home", "{Hero} had {number} {nature} {pets}. ", "day"},
    {"home", "{Hero} lived with a {nature} {kin}. ", "day"},
    {"day", "One {weather} {daytime} {he} ", "event"},
    {"event", "found a {look} {new thing} near a {look} {place}. ", "meeting"},
    {"event", "made a {look} {new thing}. ", "meeting"},
    {"event", "lost {his} {look} {new thing} near a {look} {place}. ", "help"},
    {"meeting", "A {nature} {new friend} asked {Hero} for the {thing}. ", "wish"},
    {"meeting", "{Hero} showed the {thing} to a {nature} {new friend}. ", "ending"},
    {"help", "A {nature} {new friend} brought the {thing} back. ", "thanks"},
    {"wish", "{Hero} gave the {friend} some {food} instead. ", "ending"},
    {"wish", "{He} shared the {thing} with the {friend}. ", "ending"},
    {"thanks", "{Hero} gave the {friend} some {food}. ", "ending"},
    {"ending", "The {friend} {did} and {Hero} {did}.", ""},
    {"ending", "{Hero} and the {friend} {did} until {until}.", ""},
    {"ending", "{Hero} felt {nature} and kept the {thing} near a {place}.", ""},
};
constexpr int kSentenceCount = static_cast<int>(std::size(kSentences));
constexpr std::string_view kStoryEnd = "\n\n";

using Memory = std::array<int, kVariables>;  // values, -1 when not set or never mentioned again
constexpr Memory kNothing = {-1, -1, -1};

std::vector<std::string_view> SplitWords(std::string_view words) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t bar = words.find('|');
    out.push_back(words.substr(0, bar));
    if (bar == std::string_view::npos) return out;
    words.remove_prefix(bar + 1);
  }
}

struct Item {
  std::string_view text;  // literal words, or the mention's form
  int list = -1;          // index of the word list that is chosen from, or -1
  int mention = -1;       // variable, or -1
};

std::vector<Item> ParseSentence(std::string_view text) {
  std::vector<Item> items;
  while (!text.empty()) {
    if (text[0] != '{') {
      const size_t brace = std::min(text.find('{'), text.size());
      items.push_back({text.substr(0, brace)});
      text.remove_prefix(brace);
      continue;
    }
    const size_t end = text.find('}');
    const std::string_view name = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    const auto list = std::find_if(std::begin(kLists), std::end(kLists),
                                   [name](const WordList& l) { return l.name == name; });
    if (list != std::end(kLists)) {
      items.push_back({name, static_cast<int>(list - std::begin(kLists))});
    } else {
      items.push_back({name, -1, name == "thing" ? kThing : name == "friend" ? kFriend : kHero});
    }
  }
  return items;
}

// The word that a mention becomes.
std::string_view Mention(std::string_view form, int value) {
  const bool girl = value < kGirls;
  if (form == "He") return girl ? "She" : "He";
  if (form == "he") return girl ? "she" : "he";
  if (form == "his") return girl ? "her" : "his";
  static const std::array<std::vector<std::string_view>, kVariables> words = [] {
    std::array<std::vector<std::string_view>, kVariables> all;
    for (const WordList& list : kLists) {
      if (list.variable < 0) continue;
      for (const std::string_view word : SplitWords(list.words)) all[list.variable].push_back(word);
    }
    return all;
  }();
  return words[form == "thing" ? kThing : form == "friend" ? kFriend : kHero][value];
}

}  // namespace

class StoryBuilder {
 public:
  StoryBuilder() {
    for (const Sentence& sentence : kSentences) items_.push_back(ParseSentence(sentence.text));
    for (const WordList& list : kLists) words_.push_back(SplitWords(list.words));
    FindMentions();
  }

  StoryGrammar Build() {
    PointAt({FirstOf(kSentences[0].section), -1, kNothing});
    // Unfolding a point may find new ones.
    for (size_t i = 0; i < places_.size(); ++i) Unfold(static_cast<int32_t>(i));
    CountVisits();
    for (Text& text : edge_texts_) grammar_.texts_.push_back(std::move(text.text));
    for (size_t i = 0; i < edge_texts_.size(); ++i) {
      grammar_.edges_.push_back({grammar_.texts_[i], edge_texts_[i].to});
    }
    return std::move(grammar_);
  }

 private:
  // A choice: of item `item` of a sentence, or with item -1 between the sentences of a section, of
  // which `sentence` is the first. Ordered as in a story.
  struct Place {
    int sentence;
    int item;
    Memory memory;

    auto operator<=>(const Place&) const = default;
  };
  struct Text {
    std::string text;
    int32_t to;
  };

  static int FirstOf(std::string_view section) {
    int sentence = 0;
    while (kSentences[sentence].section != section) ++sentence;
    return sentence;
  }
  static int CountOf(int first) {
    int count = 1;
    while (first + count < kSentenceCount &&
           kSentences[first + count].section == kSentences[first].section) {
      ++count;
    }
    return count;
  }

  // mentions_[s][i]: the variables that item i of sentence s, or anything after it, mentions.
  void FindMentions() {
    mentions_.resize(kSentenceCount);
    for (int s = kSentenceCount - 1; s >= 0; --s) {
      const std::vector<Item>& items = items_[s];
      mentions_[s].assign(items.size() + 1, 0);
      if (!kSentences[s].next.empty()) {
        mentions_[s].back() = SectionMentions(FirstOf(kSentences[s].next));
      }
      for (size_t i = items.size(); i-- > 0;) {
        mentions_[s][i] =
            mentions_[s][i + 1] | (items[i].mention >= 0 ? 1u << items[i].mention : 0u);
      }
    }
  }
  uint32_t SectionMentions(int first) const {
    uint32_t all = 0;
    for (int s = first; s < first + CountOf(first); ++s) all |= mentions_[s][0];
    return all;
  }

  int32_t PointAt(Place place) {
    const uint32_t needed =
        place.item < 0 ? SectionMentions(place.sentence) : mentions_[place.sentence][place.item];
    for (int v = 0; v < kVariables; ++v) {
      if ((needed >> v & 1) == 0) place.memory[v] = -1;
    }
    const auto [found, is_new] = index_.emplace(place, static_cast<int32_t>(places_.size()));
    if (is_new) places_.push_back(place);
    return found->second;
  }

  // Adds the text that follows without a choice from an item on, and says which point comes next.
  int32_t Follow(int sentence, size_t item, const Memory& memory, std::string* text) {
    for (; item < items_[sentence].size(); ++item) {
      const Item& it = items_[sentence][item];
      if (it.list >= 0) return PointAt({sentence, static_cast<int>(item), memory});
      *text += it.mention >= 0 ? Mention(it.text, memory[it.mention]) : it.text;
    }
    if (kSentences[sentence].next.empty()) {
      *text += kStoryEnd;
      return StoryGrammar::kStart;
    }
    const int next = FirstOf(kSentences[sentence].next);
    if (CountOf(next) == 1) return Follow(next, 0, memory, text);
    return PointAt({next, -1, memory});
  }

  void Unfold(int32_t index) {
    const Place place = places_[index];
    const int32_t first_edge = static_cast<int32_t>(edge_texts_.size());
    if (place.item < 0) {
      for (int s = place.sentence; s < place.sentence + CountOf(place.sentence); ++s) {
        std::string text;
        const int32_t to = Follow(s, 0, place.memory, &text);
        edge_texts_.push_back({std::move(text), to});
      }
    } else {
      const int list = items_[place.sentence][place.item].list;
      for (size_t w = 0; w < words_[list].size(); ++w) {
        Memory memory = place.memory;
        if (kLists[list].variable >= 0) {
          memory[kLists[list].variable] = kLists[list].first_value + static_cast<int>(w);
        }
        std::string text(words_[list][w]);
        const int32_t to = Follow(place.sentence, place.item + 1, memory, &text);
        edge_texts_.push_back({std::move(text), to});
      }
    }
    grammar_.points_.push_back(
        {first_edge, static_cast<int32_t>(edge_texts_.size()) - first_edge, 0});
  }

  // Points in a story's order, so that each has its visits before it passes them on.
  void CountVisits() {
    std::vector<StoryGrammar::Point>& points = grammar_.points_;
    points[StoryGrammar::kStart].visits = 1;
    for (const auto& [place, index] : index_) {
      const StoryGrammar::Point& point = points[index];
      for (int32_t e = point.first_edge; e < point.first_edge + point.edges; ++e) {
        const int32_t to = edge_texts_[e].to;
        if (to != StoryGrammar::kStart) points[to].visits += point.visits / point.edges;
      }
    }
  }

  std::vector<std::vector<Item>> items_;  // of each sentence
  std::vector<std::vector<std::string_view>> words_;
  std::vector<std::vector<uint32_t>> mentions_;
  std::map<Place, int32_t> index_;
  std::vector<Place> places_;
  std::vector<Text> edge_texts_;
  StoryGrammar grammar_;
};

namespace {

// What a reader believes who knows the grammar: the places where the text may stand, with their
// probabilities (the forward algorithm of hidden Markov models).
class Reader {
 public:
  explicit Reader(const StoryGrammar& grammar)
      : grammar_(grammar), arrivals_(grammar.points().size()) {}

  void StartAtStory() {
    places_.clear();
    Arrive(StoryGrammar::kStart, 1);
    Depart();
  }
  // Anywhere in endless stories, having read `first`: every character of an edge is as likely as
  // the edge is frequent.
  void StartAnywhere(char first) {
    places_.clear();
    for (const StoryGrammar::Point& point : grammar_.points()) {
      const double weight = point.visits / point.edges;
      for (int32_t e = point.first_edge; e < point.first_edge + point.edges; ++e) {
        const std::string_view text = grammar_.edges()[e].text;
        for (size_t at = text.find(first); at != text.npos; at = text.find(first, at + 1)) {
          Step(e, at, weight);
        }
      }
    }
    Depart();
    Normalise();
  }

  // -log p of the next character, and reads it.
  double Read(char next) {
    std::vector<PlaceInText> before;
    before.swap(places_);
    for (const PlaceInText& place : before) {
      if (grammar_.edges()[place.edge].text[place.offset] == next) {
        Step(place.edge, place.offset, place.probability);
      }
    }
    Depart();
    return -std::log(Normalise());
  }

 private:
  struct PlaceInText {
    int32_t edge;
    uint32_t offset;  // of the character that comes next
    double probability;
  };

  void Arrive(int32_t point, double probability) {
    if (arrivals_[point] == 0) arrived_.push_back(point);
    arrivals_[point] += probability;
  }
  // The character at `offset` was read.
  void Step(int32_t edge, size_t offset, double probability) {
    if (offset + 1 < grammar_.edges()[edge].text.size()) {
      places_.push_back({edge, static_cast<uint32_t>(offset + 1), probability});
    } else {
      Arrive(grammar_.edges()[edge].to, probability);
    }
  }
  // From the points that were reached to their edges.
  void Depart() {
    for (const int32_t index : arrived_) {
      const StoryGrammar::Point& point = grammar_.points()[index];
      for (int32_t e = point.first_edge; e < point.first_edge + point.edges; ++e) {
        places_.push_back({e, 0, arrivals_[index] / point.edges});
      }
      arrivals_[index] = 0;
    }
    arrived_.clear();
  }
  // Makes the probabilities sum to one; what they summed to.
  double Normalise() {
    double sum = 0;
    for (const PlaceInText& place : places_) sum += place.probability;
    for (PlaceInText& place : places_) place.probability /= sum;
    return sum;
  }

  const StoryGrammar& grammar_;
  std::vector<PlaceInText> places_;
  std::vector<double> arrivals_;  // [point]
  std::vector<int32_t> arrived_;
};

// nats and targets of a window or story.
struct Share {
  double nats = 0;
  int64_t targets = 0;
};

// Sum of nats / sum of targets, with the ratio estimator's standard error.
LossFloor MeanOf(std::span<const Share> shares) {
  Share all;
  for (const Share& share : shares) {
    all.nats += share.nats;
    all.targets += share.targets;
  }
  const double mean = all.nats / static_cast<double>(all.targets);
  double squares = 0;
  for (const Share& share : shares) {
    const double off = share.nats - mean * static_cast<double>(share.targets);
    squares += off * off;
  }
  const double n = static_cast<double>(shares.size());
  const double error = n > 1 ? std::sqrt(squares * n / (n - 1)) / static_cast<double>(all.targets)
                             : std::numeric_limits<double>::infinity();
  return {mean, error};
}

}  // namespace

const StoryGrammar& StoryGrammar::Get() {
  static const StoryGrammar grammar = StoryBuilder().Build();
  return grammar;
}

std::string StoryGrammar::Story(uint64_t seed, uint32_t index) const {
  const RandomKey key{seed, index, kTextStream};
  std::string story;
  int32_t at = kStart;
  uint64_t draw = 0;
  do {
    const Point& point = points_[at];
    const Edge& edge = edges_[point.first_edge + RandomBelow(key, draw++, point.edges)];
    story += edge.text;
    at = edge.to;
  } while (at != kStart);
  return story;
}

std::string StoryGrammar::Text(uint64_t seed, int64_t bytes) const {
  std::string text;
  for (uint32_t index = 0; static_cast<int64_t>(text.size()) < bytes; ++index) {
    text += Story(seed, index);
  }
  return text;
}

double StoryGrammar::StoryEntropy() const {
  double entropy = 0;
  for (const Point& point : points_) entropy += point.visits * std::log(point.edges);
  return entropy;
}

double StoryGrammar::StoryLength() const {
  double length = 0;
  for (const Point& point : points_) {
    for (int32_t e = point.first_edge; e < point.first_edge + point.edges; ++e) {
      length += point.visits / point.edges * static_cast<double>(edges_[e].text.size());
    }
  }
  return length;
}

std::vector<double> StoryGrammar::Surprisals(std::string_view text) const {
  std::vector<double> nats(text.size(), std::numeric_limits<double>::infinity());
  Reader reader(*this);
  reader.StartAtStory();
  for (size_t i = 0; i < text.size(); ++i) {
    nats[i] = reader.Read(text[i]);
    if (std::isinf(nats[i])) break;
  }
  return nats;
}

std::vector<double> StoryGrammar::WindowSurprisals(std::string_view window) const {
  std::vector<double> nats(window.size() - 1, std::numeric_limits<double>::infinity());
  Reader reader(*this);
  reader.StartAnywhere(window[0]);
  for (size_t i = 0; i < nats.size(); ++i) {
    nats[i] = reader.Read(window[i + 1]);
    if (!std::isfinite(nats[i])) {
      nats[i] = std::numeric_limits<double>::infinity();
      break;
    }
  }
  return nats;
}

StoryBatches::StoryBatches(std::string text, TokenStore store, Split split, int64_t block_size,
                           int64_t vocab_size)
    : TextBatches(std::move(store), split, block_size, vocab_size),
      text_(std::move(text)),
      val_begin_(split.train) {
  HEED_DCHECK(static_cast<int64_t>(text_.size()) == split.train + split.val);
}

std::optional<LossFloor> StoryBatches::loss_floor(int64_t wanted) const {
  const int64_t windows = std::min(wanted, ValWindows());
  std::vector<Share> shares(static_cast<size_t>(windows));
  const StoryGrammar& grammar = StoryGrammar::Get();
  ParallelFor(windows, [&](int64_t w) {
    const Window window = ValWindow(w, windows);
    const std::vector<double> nats = grammar.WindowSurprisals(
        std::string_view(text_).substr(static_cast<size_t>(window.begin), block() + 1));
    shares[w].nats = std::accumulate(nats.begin() + window.counted_before, nats.end(), 0.0);
    shares[w].targets = block() - window.counted_before;
  });
  return MeanOf(shares);
}

LossFloor StoryBatches::FullContextFloor() const {
  const std::vector<double> nats = StoryGrammar::Get().Surprisals(text_);
  std::vector<Share> stories(1);
  // The first validation token is no target: nothing of its split is before it.
  for (size_t i = static_cast<size_t>(val_begin_) + 1; i < text_.size(); ++i) {
    stories.back().nats += nats[i];
    ++stories.back().targets;
    if (text_.substr(i - 1, 2) == kStoryEnd && i + 1 < text_.size()) stories.emplace_back();
  }
  return MeanOf(stories);
}

}  // namespace heed
