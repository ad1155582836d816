#include "verify/diagnose/live_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/quote.h"
#include "tensor/shape.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/attention_search.h"
#include "verify/diagnose/live_probe.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kBatch = 2, kPositions = 9;
constexpr int64_t kLong = 288;    // beyond the 256 that bfloat16 counts exactly
constexpr int64_t kDraws = 64;    // of dropout
constexpr double kDropout = 0.3;  // at 0.5, 1 / p and 1 / (1 - p) are one
const std::vector<std::string> kLiveDropout = {"dropout_live_in_eval"};
constexpr double kStandardErrors = 6;
constexpr double kMostExcess = 2.5;      // numbers of one answer are not independent
constexpr int kMostRounds = 3;           // of separating inputs
constexpr size_t kMostShortenings = 10;  // questions spent on the shortest failing input

struct CheckText {
  std::string_view name, tried, rules_out, look;
};
constexpr CheckText kFormula = {"formula", "an ordinary input, with one row of low variance",
                                "faults of mathematics in eval mode", "the explanation above"};
constexpr CheckText kRepeats = {"eval repeats", "one row twice, and once more",
                                "dropout that acts in evaluation, uninitialised memory",
                                "self.training, dropout_p, buffers that are not filled"};
constexpr CheckText kBatchCheck = {"batch", "other rows beside a row",
                                   "attention or softmax across the batch",
                                   "the axes of q, k and v, the axis of softmax"};
constexpr CheckText kCausal = {"causality", "later positions changed",
                               "a mask that is missing, shifted or filled too weakly",
                               "the mask and where it is applied"};
constexpr CheckText kLongCheck = {"long positions", "many positions",
                                  "angles in 16 bits, windows, tables that are too short",
                                  "the type of positions and angles"};
constexpr CheckText kLarge = {"large scores", "x times 8", "softmax that overflows, weak fills",
                              "the maximum that softmax subtracts, the fill of the mask"};
constexpr CheckText kCached = {"cached", "a prompt, then one position at a time",
                               "faults of the cache and of positions behind it",
                               "the position of new tokens, how keys are appended"};
constexpr CheckText kChunked = {"chunked", "a prompt, then chunks of several positions",
                                "masks and positions inside a chunk behind a cache",
                                "the alignment of the mask, the position of each row"};
constexpr CheckText kEqualChunks = {"equal chunks", "two chunks of the same length",
                                    "tables that are kept by length alone",
                                    "the key of the table of angles"};
// What a program may know besides: its mode, what that is, and how it is told apart.
struct ContextCheck {
  CheckText text;
  const char* mode;
  const char* thing;
};
constexpr ContextCheck kContextChecks[] = {
    {{"padding", "rows that begin with padding", "padding that is seen, or another row's",
      "how attention_mask meets the causal mask"},
     "padded",
     "padding"},
    {{"alibi", "scores with slopes", "slopes that are missing, of another sign or series",
      "the slopes, and where they are added"},
     "alibi",
     "ALiBi"},
    {{"norms of q, k", "an RMS norm of every head's q and k",
      "norms that are missing, over another axis, without gain", "q_norm and k_norm"},
     "qk_norm",
     "norms of q and k"},
    {{"layer norms", "the same with mean and bias", "means that stay, biases that are missing",
      "q_norm and k_norm"},
     "qk_layernorm",
     "layer norms of q and k"}};
constexpr CheckText kTrain = {"train", "train mode without dropout", "a mask lost on one path",
                              "what train mode does besides dropout"};
constexpr CheckText kDropoutCheck = {"dropout", "one input many times in train mode",
                                     "dropout that is not called, or not rescaled",
                                     "where dropout is called, division by 1 - p"};
constexpr CheckText kTrainAgain = {"train again", "train mode behind an evaluation",
                                   "dropout that one evaluation turns off",
                                   "what eval mode changes and train mode does not bring back"};

// Numbers in a text, in order.
Numbers NumbersIn(const std::string& text) {
  Numbers numbers;
  for (size_t i = 0; i < text.size();) {
    size_t used = 0;
    if (std::isdigit(static_cast<unsigned char>(text[i])) != 0) {
      const char* begin = text.c_str() + i;
      char* end = nullptr;
      numbers.push_back(std::strtod(begin, &end));
      used = static_cast<size_t>(end - begin);
    }
    i += std::max<size_t>(used, 1);
  }
  return numbers;
}

// Fitted numbers may differ by what rounding leaves.
bool SameDetail(const std::string& a, const std::string& b) {
  const Numbers x = NumbersIn(a), y = NumbersIn(b);
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::abs(x[i] - y[i]) > 0.05 * std::max(std::abs(x[i]), std::abs(y[i]))) return false;
  }
  return true;
}

class Session {
 public:
  Session(const LiveRequest& request, LiveProgram program, ProbeShape shape, double dropout,
          std::set<std::string> stated)
      : request_(request),
        program_(std::move(program)),
        shape_(std::move(shape)),
        dropout_(dropout),
        told_(stated),
        stated_(std::move(stated)) {}

  Result<LiveReport> Run() {
    const Probe first = ProbeOf(kBatch, kPositions);
    AttentionCase attention = MakeCase(first);
    WeakenOneRow(&attention);
    HEED_ASSIGN(const LiveAnswer answer, Ask({first, attention}));
    modes_ = answer.modes;
    const AttentionDump dump = DumpOf(first, attention, answer.theirs);
    report_.diagnosis = DiagnoseAttention(dump);
    for (const TheirTensor& tensor : answer.theirs) {
      const bool scores = tensor.stage == Stage::kScores;
      const auto is_bad = [&](double v) { return scores ? std::isnan(v) : !std::isfinite(v); };
      const auto bad = std::ranges::find_if(tensor.values, is_bad);
      if (bad == tensor.values.end()) continue;
      // Some faults leave rows of NaN, none leaves nothing else.
      if (report_.diagnosis.verdict != DiagnosisVerdict::kUnexplained &&
          !std::ranges::all_of(tensor.values, is_bad)) {
        continue;
      }
      return program_.Failure(
          first.mode, "not_finite",
          fmt::format("tensor {} has {} at {}", Quoted(tensor.name), *bad,
                      ShapeText(IndexOf(bad - tensor.values.begin(), tensor.shape))),
          "no known fault leaves just these entries so");
    }
    Settle(report_.diagnosis);
    reference_ = answer.theirs.back().values;
    bound_ = report_.diagnosis.noise_floor;
    const bool right = report_.diagnosis.verdict == DiagnosisVerdict::kCorrect;
    Say(kFormula, report_.diagnosis.reference_residual, bound_);
    std::vector<Question> next = {Repeated(attention), Changed(attention)};
    if (right) std::ranges::copy(OtherInputs(), std::back_inserter(next));
    HEED_TRY(AskAhead(next));
    HEED_TRY(CheckRepeats(attention));
    if (!random_) HEED_TRY(CheckCausality(attention));
    // A known fault may mix the rows of a batch; dropout that was solved for is no such.
    const std::vector<Explanation>& explanations = report_.diagnosis.explanations;
    random_ = random_ && (explanations.empty() || explanations[0].faults == kLiveDropout);
    if (random_) {
      HEED_TRY(NameRandomness(attention));
    } else if (right) {
      HEED_TRY(CheckOtherInputs());
    } else {
      HEED_TRY(Conclude(first));
    }
    report_.runs = program_.runs();
    return std::move(report_);
  }

 private:
  // ---------------------------------------------------------------- asking

  Probe ProbeOf(int64_t B, int64_t T, uint64_t seed = 1) const {
    const int64_t most = request_.settings.block_size > 0 ? request_.settings.block_size : T;
    return {.shape = shape_, .B = B, .T = std::min(T, most), .seed = seed};
  }

  // One row nearly constant: only eps and cancellation tell it from others.
  static void WeakenOneRow(AttentionCase* attention) {
    const int64_t C = attention->qkv.in, row = attention->B * attention->T - 2;
    if (row < attention->T) return;
    for (int64_t c = 0; c < C; ++c) attention->x[row * C + c] *= 0x1p-10;
  }

  struct Question {
    Probe probe;
    AttentionCase attention;
    double dropout = 0;  // in train mode
  };
  static Question Plain(const Probe& probe) { return {probe, MakeCase(probe)}; }

  LiveQuestion Told(const Question& question, const std::string& want = "") const {
    const bool trains = question.probe.mode == "train";
    return {.mode = question.probe.mode,
            .attention = question.attention,
            .context = MakeContext(question.probe),
            .chunks = question.probe.chunks,
            .dropout = trains ? question.dropout : dropout_,
            .want = want,
            .settings = told_};
  }

  Result<LiveAnswer> Ask(const Question& question, const std::string& want = "") {
    if (request_.note) {
      const Probe& probe = question.probe;
      std::string line = fmt::format("asking: {}, B {}, T {}", probe.mode, probe.B, probe.T);
      if (!probe.chunks.empty()) line += fmt::format(", chunks {}", fmt::join(probe.chunks, ", "));
      if (!want.empty()) line += ", wanted: " + want;
      request_.note(line);
    }
    return program_.Ask(Told(question, want));
  }

  // In one run, where the program can.
  Status AskAhead(const std::vector<Question>& questions) {
    if (!modes_.contains("many")) return {};
    std::vector<LiveQuestion> told;
    for (const Question& question : questions) told.push_back(Told(question));
    return program_.AskAhead(std::move(told));
  }

  // What was found by trying is known from now on, here and not in the program.
  void Settle(const Diagnosis& diagnosis) {
    AttentionSettings& s = shape_.settings;
    for (const auto& [name, text] : diagnosis.conventions) {
      if (name == "position") s.position = text == "rope" ? Position::kRope : Position::kNone;
      if (name == "rope_pairing") {
        s.rope_pairing = text == "half" ? RopePairing::kHalf : RopePairing::kInterleaved;
      }
      if (name == "rope_first_position") s.rope_first_position = text == "1";
    }
    stated_.insert({"position", "rope_pairing", "rope_first_position", "qkv_layout"});
    found_ = diagnosis.conventions;
  }

  // ---------------------------------------------------------------- numbers

  AttentionDump DumpOf(AttentionCase attention, AttentionContext context,
                       std::vector<TheirTensor> theirs) const {
    AttentionDump dump;
    dump.attention = std::move(attention);
    dump.context = std::move(context);
    dump.theirs = std::move(theirs);
    dump.stated = stated_;
    dump.linear_stated = true;
    dump.output = dump.theirs.back().dtype;
    const DType types[] = {DType::kF32, dump.output};
    dump.coarsest = CoarsestOf(types);
    return dump;
  }

  // The right formula under the conventions that were found.
  const AttentionRecipe& RightOf(const AttentionSearch& search) const {
    const auto fits = [this](const AttentionConvention& convention) {
      return std::ranges::all_of(convention.texts, [this](const auto& decided) {
        const auto found = found_.find(decided.first);
        return found == found_.end() || found->second == decided.second;
      });
    };
    const auto found = std::ranges::find_if(search.conventions(), fits);
    return (found == search.conventions().end() ? search.conventions().begin() : found)->right;
  }

  // Of the right formula.
  Numbers RightTensor(const Probe& probe, const AttentionCase& attention, Stage stage) const {
    AttentionDump dump;
    dump.attention = attention;
    dump.context = MakeContext(probe);
    dump.stated = stated_;
    dump.linear_stated = true;
    AttentionSearch search(dump);
    return *search.replay().Tensor(RightOf(search), stage);
  }

  // y [B, T, C].
  Numbers RightY(const Probe& probe, const AttentionCase& attention) const {
    return RightTensor(probe, attention, Stage::kY);
  }

  // Positions [first, first + count) of a tensor [outer, T, width].
  static Numbers Slice(const Numbers& from, int64_t T, int64_t width, int64_t first,
                       int64_t count) {
    Numbers slice;
    const int64_t outer = static_cast<int64_t>(from.size()) / (T * width);
    for (int64_t o = 0; o < outer; ++o) {
      const auto begin = from.begin() + (o * T + first) * width;
      slice.insert(slice.end(), begin, begin + count * width);
    }
    return slice;
  }

  // The case and the answer as a diagnosis reads them: the whole, or one chunk behind a cache that
  // the right formula fills.
  AttentionDump DumpOf(const Probe& probe, const AttentionCase& attention,
                       const std::vector<TheirTensor>& theirs) const {
    if (probe.chunks.empty()) return DumpOf(attention, MakeContext(probe), theirs);
    const TheirTensor& y = theirs.back();
    const int64_t T = attention.T, C = attention.proj.out, D = attention.settings.head_dim;
    const Numbers right = RightY(probe, attention);
    int64_t first = 0, count = probe.chunks[0];
    for (size_t chunk = 1; chunk < probe.chunks.size(); ++chunk) {
      first += count;
      count = probe.chunks[chunk];
      // The first that fails; later ones may suffer from it.
      if (Residual(Slice(y.values, T, C, first, count), Slice(right, T, C, first, count)) > bound_)
        break;
    }
    AttentionCase part = attention;
    part.P = first;
    part.T = count;
    part.x = Slice(attention.x, T, attention.qkv.in, first, count);
    part.past_k = Slice(RightTensor(probe, attention, Stage::kKRot), T, D, 0, first);
    part.past_v = Slice(RightTensor(probe, attention, Stage::kV), T, D, 0, first);
    TheirTensor rows = y;
    rows.shape = {attention.B, count, C};
    rows.values = Slice(y.values, T, C, first, count);
    return DumpOf(std::move(part), MakeContext(probe), {std::move(rows)});
  }

  // ---------------------------------------------------------------- checks

  void Say(const CheckText& text, double value, double bound, std::string note = "") {
    report_.checks.push_back({.name = text.name,
                              .tried = text.tried,
                              .rules_out = text.rules_out,
                              .look = text.look,
                              .verdict = value <= bound ? CheckVerdict::kOk : CheckVerdict::kFailed,
                              .value = value,
                              .bound = bound,
                              .note = std::move(note)});
  }

  void Skip(const CheckText& text, std::string note) {
    report_.checks.push_back({.name = text.name,
                              .tried = text.tried,
                              .rules_out = text.rules_out,
                              .look = text.look,
                              .value = std::numeric_limits<double>::quiet_NaN(),
                              .bound = std::numeric_limits<double>::quiet_NaN(),
                              .note = std::move(note)});
  }

  // A program that fails behind its first answer fails a check; an interruption ends all.
  Result<std::optional<LiveAnswer>> AskFor(const CheckText& text, const Question& question) {
    Result<LiveAnswer> answer = Ask(question);
    if (answer) return std::optional<LiveAnswer>(std::move(*answer));
    if (answer.error().kind != ErrorKind::kRequest) return tl::make_unexpected(answer.error());
    Say(text, std::numeric_limits<double>::infinity(), bound_, answer.error().found);
    Unexplained(fmt::format("{}: {}", text.name, answer.error().found));
    return std::optional<LiveAnswer>();
  }

  // A failure that has no name.
  void Unexplained(std::string sentence) {
    if (report_.diagnosis.verdict == DiagnosisVerdict::kCorrect) {
      report_.diagnosis.verdict = DiagnosisVerdict::kUnexplained;
      report_.diagnosis.explanations.clear();
    }
    report_.diagnosis.seen.push_back(std::move(sentence));
  }

  void Name(const char* fault, double residual, std::string detail) {
    report_.diagnosis.verdict = DiagnosisVerdict::kFault;
    report_.diagnosis.explanations = {{{fault}, residual, std::move(detail)}};
  }

  // Row 0 of the batch as rows 0 and 1.
  static AttentionCase Twins(const AttentionCase& attention, int64_t rows) {
    AttentionCase twins = attention;
    const auto each = static_cast<std::ptrdiff_t>(attention.x.size()) / attention.B;
    twins.x.clear();
    for (int64_t r = 0; r < rows; ++r) {
      twins.x.insert(twins.x.end(), attention.x.begin(), attention.x.begin() + each);
    }
    twins.B = rows;
    return twins;
  }

  Question Repeated(const AttentionCase& attention) const {
    return {ProbeOf(kBatch, attention.T), Twins(attention, kBatch)};
  }

  Status CheckRepeats(const AttentionCase& attention) {
    HEED_ASSIGN(const auto answer, AskFor(kRepeats, Repeated(attention)));
    if (!answer) return {};
    const Numbers& y = answer->theirs.back().values;
    const size_t each = y.size() / kBatch;
    const std::span<const double> row0(y.data(), each), row1(y.data() + each, each);
    const std::span<const double> before(reference_.data(), each);
    const double apart = Residual(row0, row1), moved = Residual(row0, before);
    random_ = apart > bound_;
    Say(kRepeats, apart, bound_, random_ ? "equal rows of one batch have different results" : "");
    if (random_) {
      Skip(kBatchCheck, "equal questions have different answers, so that rows cannot be compared");
    } else {
      Say(kBatchCheck, moved, bound_);
      if (moved > bound_) Unexplained("a row's result depends on the other rows of its batch");
    }
    return {};
  }

  // The second half of the positions changed.
  Question Changed(const AttentionCase& attention) const {
    Question question{ProbeOf(attention.B, attention.T), attention};
    const int64_t T = attention.T, C = attention.qkv.in;
    for (int64_t b = 0; b < attention.B; ++b) {
      for (int64_t i = T / 2 * C; i < T * C; ++i) question.attention.x[b * T * C + i] *= -0.75;
    }
    return question;
  }

  Status CheckCausality(const AttentionCase& attention) {
    const int64_t T = attention.T, from = T / 2;
    HEED_ASSIGN(const auto answer, AskFor(kCausal, Changed(attention)));
    if (!answer) return {};
    const int64_t width = attention.proj.out;
    const double moved = Residual(Slice(answer->theirs.back().values, T, width, 0, from),
                                  Slice(reference_, T, width, 0, from));
    Say(kCausal, moved, bound_,
        moved > bound_ ? fmt::format("rows before position {} moved", from) : "");
    if (moved > bound_) {
      report_.diagnosis.seen.push_back(
          fmt::format("the future leaks: changes from position {} on move earlier rows", from));
    }
    return {};
  }

  // ---------------------------------------------------------------- when eval is right

  Probe Long() const { return ProbeOf(1, kLong, 2); }
  Probe Large() const {
    Probe large = ProbeOf(kBatch, kPositions, 3);
    large.gain = 8;
    return large;
  }
  // No chunks: block_size leaves no room for them.
  Probe Chunked(std::vector<int64_t> chunks) const {
    if (std::ranges::any_of(chunks, [](int64_t n) { return n < 1; })) chunks.clear();
    Probe probe = ProbeOf(kBatch, std::reduce(chunks.begin(), chunks.end()), 4);
    probe.mode = "cached";
    probe.chunks = std::move(chunks);
    return probe;
  }
  // One position alone hides most faults of positions; chunks of one length hide in tables.
  std::array<std::pair<const CheckText*, Probe>, 3> Caches() const {
    const int64_t T = ProbeOf(kBatch, kPositions).T, half = T / 2;
    return {std::pair(&kChunked, Chunked({2, half, T - 2 - half})),
            {&kEqualChunks, Chunked({half, half})},
            {&kCached, Chunked({T - 4, 1, 1, 1, 1})}};
  }
  Probe Trained() const {
    Probe probe = ProbeOf(kBatch, kPositions, 5);
    probe.mode = "train";
    return probe;
  }
  bool HasPlainTraining() const { return std::isnan(request_.settings.dropout) || dropout_ == 0; }
  Question Drawn(const char* mode, uint64_t seed = 5) const {
    Probe probe = ProbeOf(kBatch, kPositions, seed);
    probe.mode = mode;
    AttentionCase twins = Twins(MakeCase(probe), kDraws);
    probe.B = kDraws;
    return {probe, std::move(twins), dropout_};
  }

  std::vector<Question> OtherInputs() const {
    std::vector<Question> questions = {Plain(Long()), Plain(Large())};
    for (const auto& [text, probe] : Caches()) {
      if (modes_.contains("cached") && !probe.chunks.empty()) questions.push_back(Plain(probe));
    }
    for (const ContextCheck& check : kContextChecks) {
      if (WhyNot(check).empty()) questions.push_back(Plain(InContext(check)));
    }
    if (!modes_.contains("train")) return questions;
    if (HasPlainTraining()) questions.push_back(Plain(Trained()));
    if (dropout_ > 0) questions.push_back(Drawn("train"));
    if (dropout_ > 0 && modes_.contains("train_again")) questions.push_back(Drawn("train_again"));
    return questions;
  }

  Status CheckOtherInputs() {
    HEED_TRY(CheckAgainstFormula(kLongCheck, Long()));
    HEED_TRY(CheckAgainstFormula(kLarge, Large()));
    for (const auto& [text, probe] : Caches()) {
      if (!modes_.contains("cached")) {
        Skip(*text, NotTold("cached", "a cache"));
      } else if (probe.chunks.empty()) {
        Skip(*text, "block_size is too small for chunks");
      } else {
        HEED_TRY(CheckChunks(*text, probe));
      }
    }
    for (const ContextCheck& check : kContextChecks) {
      const std::string why = WhyNot(check);
      if (why.empty()) {
        HEED_TRY(CheckAgainstFormula(check.text, InContext(check)));
      } else {
        Skip(check.text, why);
      }
    }
    if (modes_.contains("train")) return CheckTraining();
    Skip(kTrain, NotTold("train", "a train mode"));
    return {};
  }

  Probe InContext(const ContextCheck& check) const {
    Probe probe = ProbeOf(kBatch, kPositions, 6);
    probe.mode = check.mode;
    return probe;
  }

  // Why a program is not asked for this; empty when it is.
  std::string WhyNot(const ContextCheck& check) const {
    const std::string mode = check.mode;
    const AttentionContext& told = shape_.told;
    if (mode == "alibi" && told.alibi) return "every question has them";
    if (mode.starts_with("qk_") && told.qk_norm) return "every question states qk_norm";
    if (!modes_.contains(mode)) return NotTold(check.mode, check.thing);
    if (mode == "alibi" && shape_.settings.position == Position::kRope) {
      return "slopes do not go with position rope";
    }
    return "";
  }

  static std::string NotTold(const char* mode, const char* thing) {
    return fmt::format("its answers do not say that it has {} (modes \"{}\")", thing, mode);
  }

  bool IsRightSoFar() const { return report_.diagnosis.verdict == DiagnosisVerdict::kCorrect; }

  Status CheckAgainstFormula(const CheckText& text, const Probe& probe) {
    const Question question = Plain(probe);
    const AttentionCase& attention = question.attention;
    HEED_ASSIGN(const auto answer, AskFor(text, question));
    if (!answer) return {};
    const AttentionDump dump = DumpOf(probe, attention, answer->theirs);
    const bool looks = IsRightSoFar();
    const Diagnosis found = looks ? DiagnoseAttention(dump) : Diagnosis();
    const double residual = Residual(answer->theirs.back().values, RightY(probe, attention));
    const bool right = looks && found.verdict == DiagnosisVerdict::kCorrect;
    const double bound = looks ? found.noise_floor : bound_;
    Say(text, right ? std::min(residual, bound) : residual, bound);
    if (right || !looks) return {};
    report_.diagnosis = found;
    report_.diagnosis.seen.push_back(fmt::format("seen by the check \"{}\" alone", text.name));
    return Conclude(probe);
  }

  Status CheckChunks(const CheckText& text, const Probe& probe) {
    const bool looked = IsRightSoFar();
    HEED_TRY(CheckAgainstFormula(text, probe));
    // Right in chunks of different lengths: not the position itself.
    const Diagnosis& d = report_.diagnosis;
    if (looked && text.name == kEqualChunks.name && d.verdict == DiagnosisVerdict::kFault &&
        d.explanations[0].faults == std::vector<std::string>{"position_restart"}) {
      Name("rope_table_cache_key", d.explanations[0].residual, "");
    }
    return {};
  }

  Status CheckTraining() {
    if (HasPlainTraining()) {
      const bool looked = IsRightSoFar();
      HEED_TRY(CheckAgainstFormula(kTrain, Trained()));
      const Diagnosis& d = report_.diagnosis;
      if (looked && d.verdict == DiagnosisVerdict::kFault &&
          d.explanations[0].faults == std::vector<std::string>{"mask_missing"}) {
        Name("mask_dropped_on_a_path", d.explanations[0].residual, "in train mode");
      }
    }
    if (dropout_ > 0 && IsRightSoFar()) HEED_TRY(CheckDropout(kDropoutCheck, "train"));
    if (dropout_ == 0 || !IsRightSoFar()) return {};
    if (modes_.contains("train_again")) return CheckDropout(kTrainAgain, "train_again");
    Skip(kTrainAgain, NotTold("train_again", "one layer for several calls"));
    return {};
  }

  // How often `right` lies in each of the rows that should have it as their mean.
  struct Ratio {
    double mean = 0, error = 0;  // of the mean
    double spread = 0;           // of rows about the first, relative
    // Of the squared distance between the mean of the rows and what it should be, to what chance
    // leaves: about 1 where the mean is `mean` times right.
    double excess = 0;
  };
  static Ratio RatioOf(const Numbers& y, const Numbers& right, int64_t rows) {
    const size_t each = y.size() / static_cast<size_t>(rows);
    const auto n = static_cast<double>(rows);
    double size = 0;
    for (size_t i = 0; i < each; ++i) size += right[i] * right[i];
    Ratio ratio;
    Numbers ratios, mean(each), square(each);
    for (int64_t r = 0; r < rows; ++r) {
      double cross = 0, apart = 0;
      for (size_t i = 0; i < each; ++i) {
        const double value = y[static_cast<size_t>(r) * each + i];
        cross += value * right[i];
        apart += (value - y[i]) * (value - y[i]);
        mean[i] += value / n;
        square[i] += value * value / n;
      }
      ratios.push_back(cross / size);
      ratio.spread = std::max(ratio.spread, std::sqrt(apart / size));
    }
    ratio.mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / n;
    double squares = 0, distance = 0, chance = 0;
    for (const double r : ratios) squares += (r - ratio.mean) * (r - ratio.mean);
    ratio.error = std::sqrt(squares / (n - 1) / n);
    for (size_t i = 0; i < each; ++i) {
      distance += std::pow(mean[i] - ratio.mean * right[i], 2);
      chance += (square[i] - mean[i] * mean[i]) / (n - 1);
    }
    ratio.excess = distance / chance;
    return ratio;
  }

  // In train mode, of rows that are equal before dropout.
  Ratio RatioOfDraws(const Question& drawn, const LiveAnswer& answer) const {
    const Numbers right = RightY(drawn.probe, Twins(drawn.attention, 1));
    return RatioOf(answer.theirs.back().values, right, kDraws);
  }

  Status CheckDropout(const CheckText& text, const char* mode) {
    const Question drawn = Drawn(mode);
    HEED_ASSIGN(const auto answer, AskFor(text, drawn));
    if (!answer) return {};
    const Ratio ratio = RatioOfDraws(drawn, *answer);
    const double p = dropout_;
    const auto is = [&](double expected) {
      return std::abs(ratio.mean - expected) <= kStandardErrors * ratio.error + bound_ &&
             !(ratio.excess > kMostExcess);
    };
    const std::string note = fmt::format("mean of {} draws: {:.3f} +- {:.3f} times eval", kDraws,
                                         ratio.mean, ratio.error);
    if (ratio.spread <= bound_) {
      const bool dropped_none = is(1);
      Say(text, 1, 0, dropped_none ? "train gives what eval gives" : "all draws are the same");
      if (dropped_none) return NameNoDropout(text);
      Unexplained("in train mode equal rows of a batch have equal, wrong results");
      return {};
    }
    if (is(1)) {
      Say(text, std::abs(ratio.mean - 1), kStandardErrors * ratio.error + bound_, note);
      return {};
    }
    Say(text, std::max(std::abs(ratio.mean - 1), bound_), 0, note);
    if (is(1 - p)) {
      Name("dropout_scaling_missing", std::abs(ratio.mean / (1 - p) - 1), note);
    } else if (is((1 - p) / p)) {
      Name("dropout_scaling_missing", std::abs(ratio.mean * p / (1 - p) - 1), note);
    } else {
      Unexplained(note);
    }
    return {};
  }

  // A program that keeps one layer was asked in eval mode first: a fresh one says whether its
  // training ever drops.
  Status NameNoDropout(const CheckText& text) {
    bool once_dropped = text.name == kTrainAgain.name;
    if (!once_dropped && modes_.contains("many")) {
      const Question drawn = Drawn("train", 7);
      const Result<LiveAnswer> answer = Ask(drawn);
      if (!answer && answer.error().kind != ErrorKind::kRequest) {
        return tl::make_unexpected(answer.error());
      }
      once_dropped = answer && RatioOfDraws(drawn, *answer).spread > bound_;
    }
    once_dropped ? Name("dropout_off_for_good", 0, "before an evaluation it drops")
                 : Name("dropout_unused", 0, "");
    return {};
  }

  // Rows of one batch that should be equal are not: the mean of many tells whether by dropout.
  Status NameRandomness(const AttentionCase& attention) {
    const AttentionCase twins = Twins(attention, kDraws);
    HEED_ASSIGN(const auto answer, AskFor(kRepeats, {ProbeOf(kDraws, attention.T), twins}));
    report_.diagnosis.verdict = DiagnosisVerdict::kUnexplained;
    report_.diagnosis.explanations.clear();
    if (!answer) return {};
    const Numbers right = RightY(ProbeOf(1, attention.T), Twins(attention, 1));
    const Ratio ratio = RatioOf(answer->theirs.back().values, right, kDraws);
    const std::string note = fmt::format("mean of {} results: {:.3f} +- {:.3f} times the right one",
                                         kDraws, ratio.mean, ratio.error);
    report_.diagnosis.seen.push_back(note);
    if (std::abs(ratio.mean - 1) <= kStandardErrors * ratio.error && ratio.excess <= kMostExcess) {
      Name(kLiveDropout[0].c_str(), std::abs(ratio.mean - 1), note);
      KeepWhole(ProbeOf(1, kPositions));
    }
    return {};
  }

  // ---------------------------------------------------------------- when a formula is wrong

  Status Conclude(const Probe& probe) {
    const DiagnosisVerdict verdict = report_.diagnosis.verdict;
    if (verdict == DiagnosisVerdict::kAmbiguous) HEED_TRY(Separate(probe));
    if (verdict == DiagnosisVerdict::kFault) HEED_TRY(Confirm(probe));
    return Shorten(probe);
  }

  // The same question about other numbers.
  Probe Another(const Probe& probe, uint64_t seed) const {
    Probe other = probe;
    other.seed = seed;
    if (probe.chunks.empty()) {
      const int64_t T = probe.T + 2, most = request_.settings.block_size;
      other.T = most > 0 ? std::min(T, most) : T;
      other.B = probe.B + 1;
    }
    return other;
  }

  // A name that fits one input by chance does not fit the next.
  Status Confirm(const Probe& probe) {
    const Probe other = Another(probe, probe.seed + 10);
    const AttentionCase attention = MakeCase(other);
    Result<LiveAnswer> answer = Ask({other, attention});
    if (!answer) {
      if (answer.error().kind != ErrorKind::kRequest) return tl::make_unexpected(answer.error());
      report_.diagnosis.seen.push_back("a second input: " + answer.error().found);
      return {};
    }
    const Diagnosis second = DiagnoseAttention(DumpOf(other, attention, answer->theirs));
    const Explanation& first = report_.diagnosis.explanations[0];
    for (const Explanation& explanation : second.explanations) {
      if (explanation.faults == first.faults && SameDetail(explanation.detail, first.detail)) {
        report_.diagnosis.seen.emplace_back("a second input gives the same name");
        return {};
      }
    }
    std::string sentence = "a second input is not explained by it";
    if (!second.explanations.empty() && !second.explanations[0].faults.empty()) {
      sentence += fmt::format(", but by {}", fmt::join(second.explanations[0].faults, " + "));
    }
    report_.diagnosis.seen.push_back(
        fmt::format("{} fits the first input, {}", fmt::join(first.faults, " + "), sentence));
    report_.diagnosis.verdict = DiagnosisVerdict::kUnexplained;
    report_.diagnosis.explanations.clear();
    return {};
  }

  // Asks what parts the explanations most, while there are several.
  Status Separate(const Probe& probe) {
    for (int round = 0; round < kMostRounds; ++round) {
      Diagnosis& d = report_.diagnosis;
      if (d.explanations.size() < 2) return {};
      const std::optional<Probe> next = MostSeparating(probe, static_cast<uint64_t>(round));
      const std::string want = next || d.ask_for.empty() ? "" : d.ask_for[0];
      if (!next && want.empty()) return {};
      const Probe& asked = next ? *next : probe;
      const AttentionCase attention = MakeCase(asked);
      Result<LiveAnswer> answer = Ask({asked, attention}, want);
      if (!answer && answer.error().kind != ErrorKind::kRequest) {
        return tl::make_unexpected(answer.error());
      }
      if (!answer) return {};
      const Diagnosis second = DiagnoseAttention(DumpOf(asked, attention, answer->theirs));
      const auto left = [&](const Explanation& e) {
        return std::ranges::find(second.explanations, e.faults, &Explanation::faults) !=
               second.explanations.end();
      };
      std::vector<Explanation> both;
      std::ranges::copy_if(d.explanations, std::back_inserter(both), left);
      if (both.empty()) {
        d.seen.emplace_back("what fits the first input does not fit the second");
        d.verdict = DiagnosisVerdict::kUnexplained;
        d.explanations.clear();
        return {};
      }
      if (both.size() == d.explanations.size() && !next) return {};
      d.explanations = std::move(both);
      if (d.explanations.size() == 1) {
        d.verdict = DiagnosisVerdict::kFault;
        d.ask_for.clear();
        d.seen = {want.empty() ? fmt::format("separated by an input of {} positions", asked.T)
                               : "separated by " + want};
      }
    }
    return {};
  }

  // Of some inputs, the one whose results by the explanations lie farthest apart.
  std::optional<Probe> MostSeparating(const Probe& probe, uint64_t round) const {
    std::vector<Probe> candidates;
    for (uint64_t i = 0; i < 3; ++i) {
      Probe candidate = Another(probe, probe.seed + 20 + 10 * round + i);
      if (i == 1) candidate.gain *= 4;
      if (i == 2 && probe.chunks.empty()) {
        candidate.T = 33;
        if (const int64_t most = request_.settings.block_size; most > 0) {
          candidate.T = std::min(candidate.T, most);
        }
      }
      candidates.push_back(candidate);
    }
    std::optional<Probe> best;
    double most = 100 * bound_;
    for (const Probe& candidate : candidates) {
      const double apart = Separation(candidate);
      if (apart > most) {
        most = apart;
        best = candidate;
      }
    }
    return best;
  }

  // y as each explanation's variants have it.
  std::vector<Numbers> Predicted(AttentionSearch* search,
                                 const std::vector<std::string>& faults) const {
    std::vector<Numbers> predicted;
    for (const AttentionRecipe& recipe : search->RecipesOf(faults)) {
      predicted.push_back(*search->replay().Tensor(recipe, Stage::kY));
    }
    return predicted;
  }

  AttentionDump Unanswered(const Probe& probe) const {
    AttentionCase attention = MakeCase(probe);
    // The numbers say where the chunk is cut: as if the second failed.
    const auto size = static_cast<size_t>(attention.B * attention.T * attention.proj.out);
    TheirTensor y{
        .name = "y", .stage = Stage::kY, .shape = {attention.B, attention.T, attention.proj.out}};
    y.values.assign(size, 0);
    return DumpOf(probe, attention, {y});
  }

  double Separation(const Probe& probe) const {
    const AttentionDump dump = Unanswered(probe);
    AttentionSearch search(dump);
    std::vector<std::vector<Numbers>> all;
    for (const Explanation& e : report_.diagnosis.explanations) {
      all.push_back(Predicted(&search, e.faults));
    }
    double least = std::numeric_limits<double>::infinity();
    for (size_t a = 0; a < all.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        for (const Numbers& x : all[a]) {
          for (const Numbers& y : all[b]) least = std::min(least, Residual(x, y));
        }
      }
    }
    return least;
  }

  // ---------------------------------------------------------------- the shortest failing input

  std::vector<Probe> Shorter(const Probe& probe) const {
    std::vector<Probe> shorter;
    for (const int64_t B : {1, 2}) {
      if (B > probe.B) continue;
      const int64_t most = std::min(probe.T, kPositions);
      for (int64_t T = 1; T <= most; ++T) {
        if (B == probe.B && T == probe.T) continue;
        Probe candidate = probe;
        candidate.B = B;
        candidate.T = T;
        if (probe.chunks.empty()) {
          shorter.push_back(candidate);
          continue;
        }
        for (int64_t count = 1; count < T; ++count) {
          candidate.chunks = {T - count, count};
          if (shorter.size() < 40) shorter.push_back(candidate);
        }
      }
    }
    return shorter;
  }

  // Whether a fault that was named shows there: one way to make it at least.
  bool Shows(const Probe& probe) const {
    const AttentionDump dump = Unanswered(probe);
    AttentionSearch search(dump);
    const Numbers right = *search.replay().Tensor(RightOf(search), Stage::kY);
    for (const Explanation& e : report_.diagnosis.explanations) {
      const std::vector<Numbers> predicted = Predicted(&search, e.faults);
      if (predicted.empty()) return true;
      for (const Numbers& y : predicted) {
        if (!(Residual(y, right) <= 100 * bound_)) return true;
      }
    }
    return report_.diagnosis.explanations.empty();
  }

  Status Shorten(const Probe& probe) {
    std::vector<Probe> candidates = Shorter(probe);
    // Without a name, what comes before the first wrong row is right.
    if (report_.diagnosis.explanations.empty() && probe.chunks.empty()) {
      int64_t first = 0;
      const std::vector<int64_t>& equal = report_.diagnosis.equal_rows;
      while (first < static_cast<int64_t>(equal.size()) && equal[first] == first) ++first;
      std::erase_if(candidates, [&](const Probe& p) { return p.T <= first; });
    }
    std::vector<Question> questions;
    for (const Probe& candidate : candidates) {
      if (questions.size() < kMostShortenings && Shows(candidate)) {
        questions.push_back(Plain(candidate));
      }
    }
    HEED_TRY(AskAhead(questions));
    for (const Question& question : questions) {
      Result<LiveAnswer> answer = Ask(question);
      if (!answer && answer.error().kind != ErrorKind::kRequest) {
        return tl::make_unexpected(answer.error());
      }
      if (!answer) continue;
      const Numbers right = RightY(question.probe, question.attention);
      const double residual = Residual(answer->theirs.back().values, right);
      if (residual <= 10 * bound_) continue;
      Keep(question.probe, question.attention, answer->theirs.back().values, right);
      return {};
    }
    KeepWhole(probe);
    return {};
  }

  void Keep(const Probe& probe, const AttentionCase& attention, const Numbers& theirs,
            const Numbers& right) {
    const int64_t T = attention.T, C = attention.proj.out;
    int64_t worst = 0;
    double most = -1;
    for (int64_t row = 0; row < attention.B * T; ++row) {
      const std::span<const double> ours(right.data() + row * C, static_cast<size_t>(C));
      const double apart = Residual({theirs.data() + row * C, static_cast<size_t>(C)}, ours);
      if (apart > most) {
        most = apart;
        worst = row;
      }
    }
    report_.failing_input = FailingInput{probe.mode,
                                         probe.B,
                                         T,
                                         probe.chunks,
                                         Residual(theirs, right),
                                         ProbeCode(probe, right, worst / T, worst % T)};
  }

  // Nothing shorter fails: the whole input, but for the row of low variance, which is not in its
  // code.
  void KeepWhole(const Probe& probe) {
    if (!probe.chunks.empty()) return;
    const AttentionCase attention = MakeCase(probe);
    const Result<LiveAnswer> answer = Ask({probe, attention});
    if (!answer) return;
    const Numbers &theirs = answer->theirs.back().values, right = RightY(probe, attention);
    if (Residual(theirs, right) > 10 * bound_) Keep(probe, attention, theirs, right);
  }

  const LiveRequest& request_;
  LiveProgram program_;
  ProbeShape shape_;
  double dropout_;
  std::set<std::string> told_, stated_;
  std::set<std::string> modes_;
  std::map<std::string, std::string> found_;  // conventions of the first answer
  Numbers reference_;                         // their y of the first question
  double bound_ = 0;
  bool random_ = false;
  LiveReport report_;
};

}  // namespace

Result<LiveReport> DiagnoseLive(const LiveRequest& request) {
  const LiveSettings& s = request.settings;
  if (!(s.timeout > 0)) {
    return BadRequest("--timeout", fmt::format("{:g}", s.timeout), "a number of seconds above 0");
  }
  if (s.dropout < 0 || s.dropout >= 1) {
    return BadRequest("--dropout", fmt::format("{:g}", s.dropout), "a number in [0, 1)");
  }
  for (const auto& [name, size] :
       {std::pair("--n-embd", s.n_embd), {"--block-size", s.block_size}}) {
    if (size < 0) return BadRequest(name, fmt::format("{}", size), "at least 1");
  }
  HEED_ASSIGN(const AttentionSettings settings, ParseAttentionSettings({}, request.given, "--run"));
  HEED_ASSIGN(ProbeShape shape, ChooseShape(settings, s.n_embd, kBatch, kPositions));
  shape.bias = s.bias;
  HEED_ASSIGN(shape.told, ParseContextSettings(request.given, "--run", shape.settings));
  shape.fused = request.given.contains("qkv_layout");
  HEED_ASSIGN(LiveProgram program, LiveProgram::Create({s.run, s.timeout, request.stop}));
  std::set<std::string> stated;
  for (const auto& [name, text] : request.given) stated.insert(name);
  const double dropout = std::isnan(s.dropout) ? kDropout : s.dropout;
  return Session(request, std::move(program), std::move(shape), dropout, std::move(stated)).Run();
}

}  // namespace heed
