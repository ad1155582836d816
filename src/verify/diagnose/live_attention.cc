#include "verify/diagnose/live_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/quote.h"
#include "tensor/shape.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/live_explanation.h"
#include "verify/diagnose/live_failing_input.h"
#include "verify/diagnose/live_session.h"
#include "verify/diagnose/search.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kBatch = 2;
constexpr int64_t kLong = 288;    // beyond the 256 that bfloat16 counts exactly
constexpr int64_t kDraws = 64;    // of dropout
constexpr double kDropout = 0.3;  // at 0.5, 1 / p and 1 / (1 - p) are one
const std::vector<std::string> kLiveDropout = {"dropout_live_in_eval"};
constexpr double kStandardErrors = 6;
constexpr double kMostExcess = 2.5;  // numbers of one answer are not independent

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

class Checks {
 public:
  explicit Checks(LiveSession session) : session_(std::move(session)) {}

  Result<LiveReport> Run() {
    const Probe first = session_.ProbeOf(kBatch, kLivePositions);
    AttentionCase attention = MakeCase(first);
    WeakenOneRow(&attention);
    HEED_ASSIGN(const LiveAnswer answer, session_.Ask({first, attention}));
    const AttentionDump dump = session_.DumpOf(first, attention, answer.theirs);
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
      return session_.program().Failure(
          first.mode, "not_finite",
          fmt::format("tensor {} has {} at {}", Quoted(tensor.name), *bad,
                      ShapeText(IndexOf(bad - tensor.values.begin(), tensor.shape))),
          "no known fault leaves just these entries so");
    }
    session_.Settle(answer, report_.diagnosis);
    reference_ = answer.theirs.back().values;
    const bool right = report_.diagnosis.verdict == DiagnosisVerdict::kCorrect;
    Say(kFormula, report_.diagnosis.reference_residual, session_.bound());
    std::vector<Question> next = {Repeated(attention), Changed(attention)};
    if (right) std::ranges::copy(OtherInputs(), std::back_inserter(next));
    HEED_TRY(session_.AskAhead(next));
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
    report_.runs = session_.program().runs();
    return std::move(report_);
  }

 private:
  using Question = LiveSession::Question;

  // One row nearly constant: only eps and cancellation tell it from others.
  static void WeakenOneRow(AttentionCase* attention) {
    const int64_t C = attention->qkv.in, row = attention->B * attention->T - 2;
    if (row < attention->T) return;
    for (int64_t c = 0; c < C; ++c) attention->x[row * C + c] *= 0x1p-10;
  }

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
    Result<LiveAnswer> answer = session_.Ask(question);
    if (answer) return std::optional<LiveAnswer>(std::move(*answer));
    if (answer.error().kind != ErrorKind::kRequest) return tl::make_unexpected(answer.error());
    Say(text, std::numeric_limits<double>::infinity(), session_.bound(), answer.error().found);
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
    return {session_.ProbeOf(kBatch, attention.T), Twins(attention, kBatch)};
  }

  Status CheckRepeats(const AttentionCase& attention) {
    HEED_ASSIGN(const auto answer, AskFor(kRepeats, Repeated(attention)));
    if (!answer) return {};
    const Numbers& y = answer->theirs.back().values;
    const size_t each = y.size() / kBatch;
    const std::span<const double> row0(y.data(), each), row1(y.data() + each, each);
    const std::span<const double> before(reference_.data(), each);
    const double apart = Residual(row0, row1), moved = Residual(row0, before);
    random_ = apart > session_.bound();
    Say(kRepeats, apart, session_.bound(),
        random_ ? "equal rows of one batch have different results" : "");
    if (random_) {
      Skip(kBatchCheck, "equal questions have different answers, so that rows cannot be compared");
    } else {
      Say(kBatchCheck, moved, session_.bound());
      if (moved > session_.bound())
        Unexplained("a row's result depends on the other rows of its batch");
    }
    return {};
  }

  // The second half of the positions changed.
  Question Changed(const AttentionCase& attention) const {
    Question question{session_.ProbeOf(attention.B, attention.T), attention};
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
    const double moved = Residual(PositionsOf(answer->theirs.back().values, T, width, 0, from),
                                  PositionsOf(reference_, T, width, 0, from));
    Say(kCausal, moved, session_.bound(),
        moved > session_.bound() ? fmt::format("rows before position {} moved", from) : "");
    if (moved > session_.bound()) {
      report_.diagnosis.seen.push_back(
          fmt::format("the future leaks: changes from position {} on move earlier rows", from));
    }
    return {};
  }

  // ---------------------------------------------------------------- when eval is right

  Probe Long() const { return session_.ProbeOf(1, kLong, 2); }
  Probe Large() const {
    Probe large = session_.ProbeOf(kBatch, kLivePositions, 3);
    large.gain = 8;
    return large;
  }
  // No chunks: block_size leaves no room for them.
  Probe Chunked(std::vector<int64_t> chunks) const {
    if (std::ranges::any_of(chunks, [](int64_t n) { return n < 1; })) chunks.clear();
    Probe probe = session_.ProbeOf(kBatch, std::reduce(chunks.begin(), chunks.end()), 4);
    probe.mode = "cached";
    probe.chunks = std::move(chunks);
    return probe;
  }
  // One position alone hides most faults of positions; chunks of one length hide in tables.
  std::array<std::pair<const CheckText*, Probe>, 3> Caches() const {
    const int64_t T = session_.ProbeOf(kBatch, kLivePositions).T, half = T / 2;
    return {std::pair(&kChunked, Chunked({2, half, T - 2 - half})),
            {&kEqualChunks, Chunked({half, half})},
            {&kCached, Chunked({T - 4, 1, 1, 1, 1})}};
  }
  Probe Trained() const {
    Probe probe = session_.ProbeOf(kBatch, kLivePositions, 5);
    probe.mode = "train";
    return probe;
  }
  bool HasPlainTraining() const { return !session_.dropout_is_given() || session_.dropout() == 0; }
  Question Drawn(const char* mode, uint64_t seed = 5) const {
    Probe probe = session_.ProbeOf(kBatch, kLivePositions, seed);
    probe.mode = mode;
    AttentionCase twins = Twins(MakeCase(probe), kDraws);
    probe.B = kDraws;
    return {probe, std::move(twins), session_.dropout()};
  }

  std::vector<Question> OtherInputs() const {
    std::vector<Question> questions = {LiveSession::Plain(Long()), LiveSession::Plain(Large())};
    for (const auto& [text, probe] : Caches()) {
      if (session_.Has("cached") && !probe.chunks.empty())
        questions.push_back(LiveSession::Plain(probe));
    }
    for (const ContextCheck& check : kContextChecks) {
      if (WhyNot(check).empty()) questions.push_back(LiveSession::Plain(InContext(check)));
    }
    if (!session_.Has("train")) return questions;
    if (HasPlainTraining()) questions.push_back(LiveSession::Plain(Trained()));
    if (session_.dropout() > 0) questions.push_back(Drawn("train"));
    if (session_.dropout() > 0 && session_.Has("train_again"))
      questions.push_back(Drawn("train_again"));
    return questions;
  }

  Status CheckOtherInputs() {
    HEED_TRY(CheckAgainstFormula(kLongCheck, Long()));
    HEED_TRY(CheckAgainstFormula(kLarge, Large()));
    for (const auto& [text, probe] : Caches()) {
      if (!session_.Has("cached")) {
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
    if (session_.Has("train")) return CheckTraining();
    Skip(kTrain, NotTold("train", "a train mode"));
    return {};
  }

  Probe InContext(const ContextCheck& check) const {
    Probe probe = session_.ProbeOf(kBatch, kLivePositions, 6);
    probe.mode = check.mode;
    return probe;
  }

  // Why a program is not asked for this; empty when it is.
  std::string WhyNot(const ContextCheck& check) const {
    const std::string mode = check.mode;
    const AttentionContext& told = session_.shape().told;
    if (mode == "alibi" && told.alibi) return "every question has them";
    if (mode.starts_with("qk_") && told.qk_norm) return "every question states qk_norm";
    if (!session_.Has(mode)) return NotTold(check.mode, check.thing);
    if (mode == "alibi" && session_.shape().settings.position == Position::kRope) {
      return "slopes do not go with position rope";
    }
    return "";
  }

  static std::string NotTold(const char* mode, const char* thing) {
    return fmt::format("its answers do not say that it has {} (modes \"{}\")", thing, mode);
  }

  bool IsRightSoFar() const { return report_.diagnosis.verdict == DiagnosisVerdict::kCorrect; }

  Status CheckAgainstFormula(const CheckText& text, const Probe& probe) {
    const Question question = LiveSession::Plain(probe);
    const AttentionCase& attention = question.attention;
    HEED_ASSIGN(const auto answer, AskFor(text, question));
    if (!answer) return {};
    const AttentionDump dump = session_.DumpOf(probe, attention, answer->theirs);
    const bool looks = IsRightSoFar();
    const Diagnosis found = looks ? DiagnoseAttention(dump) : Diagnosis();
    const double residual =
        Residual(answer->theirs.back().values, session_.RightY(probe, attention));
    const bool right = looks && found.verdict == DiagnosisVerdict::kCorrect;
    const double bound = looks ? found.noise_floor : session_.bound();
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
    if (session_.dropout() > 0 && IsRightSoFar()) HEED_TRY(CheckDropout(kDropoutCheck, "train"));
    if (session_.dropout() == 0 || !IsRightSoFar()) return {};
    if (session_.Has("train_again")) return CheckDropout(kTrainAgain, "train_again");
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
    const Numbers right = session_.RightY(drawn.probe, Twins(drawn.attention, 1));
    return RatioOf(answer.theirs.back().values, right, kDraws);
  }

  Status CheckDropout(const CheckText& text, const char* mode) {
    const Question drawn = Drawn(mode);
    HEED_ASSIGN(const auto answer, AskFor(text, drawn));
    if (!answer) return {};
    const Ratio ratio = RatioOfDraws(drawn, *answer);
    const double p = session_.dropout();
    const auto is = [&](double expected) {
      return std::abs(ratio.mean - expected) <= kStandardErrors * ratio.error + session_.bound() &&
             !(ratio.excess > kMostExcess);
    };
    const std::string note = fmt::format("mean of {} draws: {:.3f} +- {:.3f} times eval", kDraws,
                                         ratio.mean, ratio.error);
    if (ratio.spread <= session_.bound()) {
      const bool dropped_none = is(1);
      Say(text, 1, 0, dropped_none ? "train gives what eval gives" : "all draws are the same");
      if (dropped_none) return NameNoDropout(text);
      Unexplained("in train mode equal rows of a batch have equal, wrong results");
      return {};
    }
    if (is(1)) {
      Say(text, std::abs(ratio.mean - 1), kStandardErrors * ratio.error + session_.bound(), note);
      return {};
    }
    Say(text, std::max(std::abs(ratio.mean - 1), session_.bound()), 0, note);
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
    if (!once_dropped && session_.Has("many")) {
      const Question drawn = Drawn("train", 7);
      const Result<LiveAnswer> answer = session_.Ask(drawn);
      if (!answer && answer.error().kind != ErrorKind::kRequest) {
        return tl::make_unexpected(answer.error());
      }
      once_dropped = answer && RatioOfDraws(drawn, *answer).spread > session_.bound();
    }
    once_dropped ? Name("dropout_off_for_good", 0, "before an evaluation it drops")
                 : Name("dropout_unused", 0, "");
    return {};
  }

  // Rows of one batch that should be equal are not: the mean of many tells whether by dropout.
  Status NameRandomness(const AttentionCase& attention) {
    const AttentionCase twins = Twins(attention, kDraws);
    HEED_ASSIGN(const auto answer,
                AskFor(kRepeats, {session_.ProbeOf(kDraws, attention.T), twins}));
    report_.diagnosis.verdict = DiagnosisVerdict::kUnexplained;
    report_.diagnosis.explanations.clear();
    if (!answer) return {};
    const Numbers right = session_.RightY(session_.ProbeOf(1, attention.T), Twins(attention, 1));
    const Ratio ratio = RatioOf(answer->theirs.back().values, right, kDraws);
    const std::string note = fmt::format("mean of {} results: {:.3f} +- {:.3f} times the right one",
                                         kDraws, ratio.mean, ratio.error);
    report_.diagnosis.seen.push_back(note);
    if (std::abs(ratio.mean - 1) <= kStandardErrors * ratio.error && ratio.excess <= kMostExcess) {
      Name(kLiveDropout[0].c_str(), std::abs(ratio.mean - 1), note);
      KeepWholeInput(&session_, session_.ProbeOf(1, kLivePositions), &report_);
    }
    return {};
  }

  Status Conclude(const Probe& probe) {
    const DiagnosisVerdict verdict = report_.diagnosis.verdict;
    if (verdict == DiagnosisVerdict::kAmbiguous) {
      HEED_TRY(SeparateExplanations(&session_, probe, &report_.diagnosis));
    } else if (verdict == DiagnosisVerdict::kFault) {
      HEED_TRY(ConfirmExplanation(&session_, probe, &report_.diagnosis));
    }
    return ShortenFailingInput(&session_, probe, &report_);
  }

  LiveSession session_;
  Numbers reference_;  // their y of the first question
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
  HEED_ASSIGN(ProbeShape shape, ChooseShape(settings, s.n_embd, kBatch, kLivePositions));
  shape.bias = s.bias;
  HEED_ASSIGN(shape.told, ParseContextSettings(request.given, "--run", shape.settings));
  shape.fused = request.given.contains("qkv_layout");
  HEED_ASSIGN(LiveProgram program, LiveProgram::Create({s.run, s.timeout, request.stop}));
  std::set<std::string> stated;
  for (const auto& [name, text] : request.given) stated.insert(name);
  const double dropout = std::isnan(s.dropout) ? kDropout : s.dropout;
  return Checks(
             LiveSession(request, std::move(program), std::move(shape), dropout, std::move(stated)))
      .Run();
}

}  // namespace heed
