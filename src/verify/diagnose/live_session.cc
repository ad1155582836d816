#include "verify/diagnose/live_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "verify/diagnose/search.h"

namespace heed {

using Numbers = std::vector<double>;

Numbers PositionsOf(const Numbers& from, int64_t T, int64_t width, int64_t first, int64_t count) {
  Numbers slice;
  const int64_t outer = static_cast<int64_t>(from.size()) / (T * width);
  for (int64_t o = 0; o < outer; ++o) {
    const auto begin = from.begin() + (o * T + first) * width;
    slice.insert(slice.end(), begin, begin + count * width);
  }
  return slice;
}

LiveSession::LiveSession(const LiveRequest& request, LiveProgram program, ProbeShape shape,
                         double dropout, std::set<std::string> stated)
    : request_(request),
      program_(std::move(program)),
      shape_(std::move(shape)),
      dropout_(dropout),
      told_(stated),
      stated_(std::move(stated)) {}

bool LiveSession::dropout_is_given() const { return !std::isnan(request_.settings.dropout); }

int64_t LiveSession::AtMost(int64_t positions) const {
  const int64_t most = request_.settings.block_size;
  return most > 0 ? std::min(positions, most) : positions;
}

Probe LiveSession::ProbeOf(int64_t B, int64_t T, uint64_t seed) const {
  return {.shape = shape_, .B = B, .T = AtMost(T), .seed = seed};
}

LiveQuestion LiveSession::Told(const Question& question, const std::string& want) const {
  const bool trains = question.probe.mode == "train";
  return {.mode = question.probe.mode,
          .attention = question.attention,
          .context = MakeContext(question.probe),
          .chunks = question.probe.chunks,
          .dropout = trains ? question.dropout : dropout_,
          .want = want,
          .settings = told_};
}

Result<LiveAnswer> LiveSession::Ask(const Question& question, const std::string& want) {
  if (request_.note) {
    const Probe& probe = question.probe;
    std::string line = fmt::format("asking: {}, B {}, T {}", probe.mode, probe.B, probe.T);
    if (!probe.chunks.empty()) line += fmt::format(", chunks {}", fmt::join(probe.chunks, ", "));
    if (!want.empty()) line += ", wanted: " + want;
    request_.note(line);
  }
  return program_.Ask(Told(question, want));
}

Status LiveSession::AskAhead(const std::vector<Question>& questions) {
  if (!modes_.contains("many")) return {};
  std::vector<LiveQuestion> told;
  for (const Question& question : questions) told.push_back(Told(question, ""));
  return program_.AskAhead(std::move(told));
}

void LiveSession::Settle(const LiveAnswer& answer, const Diagnosis& diagnosis) {
  modes_ = answer.modes;
  bound_ = diagnosis.noise_floor;
  // Here and not in what the program is told.
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

AttentionDump LiveSession::DumpOf(AttentionCase attention, AttentionContext context,
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
const AttentionRecipe& LiveSession::RightOf(const AttentionSearch& search) const {
  const auto fits = [this](const AttentionConvention& convention) {
    return std::ranges::all_of(convention.texts, [this](const auto& decided) {
      const auto found = found_.find(decided.first);
      return found == found_.end() || found->second == decided.second;
    });
  };
  const auto found = std::ranges::find_if(search.conventions(), fits);
  return (found == search.conventions().end() ? search.conventions().begin() : found)->right;
}

Numbers LiveSession::RightTensor(const Probe& probe, const AttentionCase& attention,
                                 Stage stage) const {
  AttentionDump dump;
  dump.attention = attention;
  dump.context = MakeContext(probe);
  dump.stated = stated_;
  dump.linear_stated = true;
  AttentionSearch search(dump);
  return *search.replay().Tensor(RightOf(search), stage);
}

Numbers LiveSession::RightY(const Probe& probe, const AttentionCase& attention) const {
  return RightTensor(probe, attention, Stage::kY);
}

Numbers LiveSession::RightY(AttentionSearch* search) const {
  return *search->replay().Tensor(RightOf(*search), Stage::kY);
}

std::vector<Numbers> LiveSession::Predicted(AttentionSearch* search,
                                            const std::vector<std::string>& faults) {
  std::vector<Numbers> predicted;
  for (const AttentionRecipe& recipe : search->RecipesOf(faults)) {
    predicted.push_back(*search->replay().Tensor(recipe, Stage::kY));
  }
  return predicted;
}

AttentionDump LiveSession::DumpOf(const Probe& probe, const AttentionCase& attention,
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
    if (Residual(PositionsOf(y.values, T, C, first, count),
                 PositionsOf(right, T, C, first, count)) > bound_)
      break;
  }
  AttentionCase part = attention;
  part.P = first;
  part.T = count;
  part.x = PositionsOf(attention.x, T, attention.qkv.in, first, count);
  part.past_k = PositionsOf(RightTensor(probe, attention, Stage::kKRot), T, D, 0, first);
  part.past_v = PositionsOf(RightTensor(probe, attention, Stage::kV), T, D, 0, first);
  TheirTensor rows = y;
  rows.shape = {attention.B, count, C};
  rows.values = PositionsOf(y.values, T, C, first, count);
  return DumpOf(std::move(part), MakeContext(probe), {std::move(rows)});
}

AttentionDump LiveSession::Unanswered(const Probe& probe) const {
  AttentionCase attention = MakeCase(probe);
  // The numbers say where the chunk is cut: as if the second failed.
  const auto size = static_cast<size_t>(attention.B * attention.T * attention.proj.out);
  TheirTensor y{
      .name = "y", .stage = Stage::kY, .shape = {attention.B, attention.T, attention.proj.out}};
  y.values.assign(size, 0);
  return DumpOf(probe, attention, {y});
}

}  // namespace heed
