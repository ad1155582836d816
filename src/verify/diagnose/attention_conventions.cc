#include "verify/diagnose/attention_conventions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace heed {
namespace {

constexpr std::array<Slot, 3> kOrders[] = {
    {Slot::kQ, Slot::kK, Slot::kV}, {Slot::kQ, Slot::kV, Slot::kK}, {Slot::kK, Slot::kQ, Slot::kV},
    {Slot::kK, Slot::kV, Slot::kQ}, {Slot::kV, Slot::kQ, Slot::kK}, {Slot::kV, Slot::kK, Slot::kQ}};

std::string OrderText(const std::array<Slot, 3>& order) {
  std::string text;
  for (const Slot slot : order) text += "qkv"[static_cast<size_t>(slot)];
  return text;
}

class Conventions {
 public:
  explicit Conventions(const AttentionDump& dump)
      : dump_(dump),
        case_(dump.attention),
        context_(dump.context),
        settings_(dump.attention.settings) {}

  std::vector<AttentionConvention> List() {
    list_ = {Stated()};
    TryPositions();
    TryPairings();
    TryOrigins();
    TryAlibi();
    TryHeadNorms();
    TryEmptyRows();
    TryLayouts();
    TryFusedRows();
    for (AttentionConvention& convention : list_) convention.facts = FactsOf(convention.right);
    return std::move(list_);
  }

 private:
  bool Is(const char* name) const { return dump_.stated.contains(name); }
  bool Fused() const { return case_.qkv.parts.size() == 1; }
  bool Given(Stage stage) const {
    return std::ranges::any_of(dump_.theirs,
                               [stage](const TheirTensor& t) { return t.stage == stage; });
  }

  AttentionConvention Stated() const {
    AttentionConvention stated;
    AttentionRecipe& right = stated.right;
    right.score.scale = 1 / std::sqrt(static_cast<double>(settings_.head_dim));
    right.mask.window = settings_.window;
    right.rotate.interleaved = settings_.rope_pairing == RopePairing::kInterleaved;
    right.rotate.theta = settings_.rope_theta;
    right.rotate.first = settings_.rope_first_position;
    if (settings_.position != Position::kRope) {
      right.rotate.q_sense = right.rotate.k_sense = 0;
    }
    if (!context_.position_ids.empty()) right.rotate.base = PositionBase::kGiven;
    if (context_.alibi) right.score.alibi = AlibiChoice::kRight;
    if (context_.Padded()) {
      right.mask.empty = context_.rows_without_keys.value_or(EmptyRow::kZero);
    }
    if (context_.HasGains()) {
      right.norm.place = NormPlace::kBeforeRotation;
      right.norm.all_heads = context_.q_norm.all_heads || context_.k_norm.all_heads;
    }
    if (context_.qk_norm) right.norm.place = *context_.qk_norm;
    right.norm.layer = context_.qk_layernorm.value_or(false);
    if (context_.norm_eps) right.norm.eps = *context_.norm_eps;
    if (Fused()) {
      const bool blocks = settings_.qkv_layout == QkvLayout::kBlocks;
      right.project.fused_pieces = blocks ? 1 : settings_.n_kv_head;
    }
    if (!case_.qkv.parts.empty() && !dump_.linear_stated) {
      stated.texts["layout"] = case_.qkv.parts[0].transposed ? "Conv1D" : "Linear";
    }
    if (!case_.qkv.parts.empty() && case_.proj.parts.empty()) stated.texts["o_proj"] = "none";
    return stated;
  }

  // Every convention so far, and again with `change`.
  template <class Set>
  void Add(Set change) {
    const size_t count = list_.size();
    for (size_t i = 0; i < count; ++i) {
      AttentionConvention changed = list_[i];
      if (change(&changed)) list_.push_back(std::move(changed));
    }
  }
  void Say(const char* name, const std::string& text) {
    for (AttentionConvention& convention : list_) convention.texts[name] = text;
  }

  void TryPositions() {
    if (Is("position") || context_.alibi || settings_.head_dim % 2 != 0) return;
    Say("position", "none");
    Add([](AttentionConvention* c) {
      c->right.rotate.q_sense = c->right.rotate.k_sense = 1;
      c->texts["position"] = "rope";
      return true;
    });
  }

  static bool Turns(const AttentionConvention& convention) {
    return convention.right.rotate.q_sense != 0;
  }

  void TryPairings() {
    if (Is("rope_pairing")) return;
    for (AttentionConvention& convention : list_) {
      if (Turns(convention)) convention.texts["rope_pairing"] = "half";
    }
    Add([](AttentionConvention* c) {
      if (!Turns(*c)) return false;
      c->right.rotate.interleaved = true;
      c->texts["rope_pairing"] = "interleaved";
      return true;
    });
  }

  void TryOrigins() {
    // A gain or a mean behind the rotation does not turn with it.
    const bool visible = case_.P > 0 || Given(Stage::kQRot) || Given(Stage::kKRot) ||
                         context_.HasGains() || context_.qk_layernorm == true;
    if (!visible || !context_.position_ids.empty()) return;
    if (context_.Padded()) {
      TryBase(PositionBase::kTokens, "from the first token", "from the first row");
    }
    if (context_.Packed()) {
      TryBase(PositionBase::kDocument, "of the document", "of the row");
    }
    if (Is("rope_first_position")) return;
    for (AttentionConvention& convention : list_) {
      if (Turns(convention)) convention.texts["rope_first_position"] = "0";
    }
    Add([](AttentionConvention* c) {
      if (!Turns(*c)) return false;
      c->right.rotate.first = 1;
      c->texts["rope_first_position"] = "1";
      return true;
    });
  }

  // Positions are counted so, or otherwise by the index in the row.
  void TryBase(PositionBase base, const char* counted, const char* otherwise) {
    for (AttentionConvention& convention : list_) {
      if (!Turns(convention)) continue;
      convention.right.rotate.base = base;
      convention.texts["positions"] = counted;
    }
    Add([otherwise](AttentionConvention* c) {
      if (!Turns(*c)) return false;
      c->right.rotate.base = PositionBase::kIndex;
      c->texts["positions"] = otherwise;
      return true;
    });
  }

  // A constant in each row of the scores, and slopes where heads are no power of two.
  void TryAlibi() {
    if (!context_.alibi) return;
    if (Given(Stage::kScores)) {
      Say("alibi", "by distance");
      Add([](AttentionConvention* c) {
        c->right.score.alibi = AlibiChoice::kByPosition;
        c->texts["alibi"] = "by position";
        return true;
      });
    }
    if (AlibiSlopes(settings_.n_head, 0) == AlibiSlopesOddsFirst(settings_.n_head)) return;
    Say("alibi_slopes", "the smaller power of two first");
    Add([](AttentionConvention* c) {
      if (c->right.score.alibi != AlibiChoice::kRight) return false;
      c->right.score.alibi = AlibiChoice::kOddsFirst;
      c->texts["alibi_slopes"] = "every other one of the larger power of two";
      return true;
    });
  }

  void TryHeadNorms() {
    if (list_[0].right.norm.place == NormPlace::kNone) return;
    if (!context_.qk_norm) {
      for (AttentionConvention& convention : list_) {
        if (Turns(convention)) convention.texts["qk_norm"] = "before_rope";
      }
      Add([](AttentionConvention* c) {
        if (!Turns(*c)) return false;
        c->right.norm.place = NormPlace::kAfterRotation;
        c->texts["qk_norm"] = "after_rope";
        return true;
      });
    }
    if (!context_.qk_layernorm) {
      Say("qk_layernorm", "false");
      Add([](AttentionConvention* c) {
        c->right.norm.layer = true;
        c->texts["qk_layernorm"] = "true";
        return true;
      });
    }
    if (context_.HasGains()) {
      Say("qk_norm_gain", "weight");
      Add([](AttentionConvention* c) {
        c->right.norm.gain_offset = 1;
        c->texts["qk_norm_gain"] = "1 + weight";
        return true;
      });
    }
    if (context_.norm_eps) return;
    Say("norm_eps", "1e-06");
    Add([](AttentionConvention* c) {
      c->right.norm.eps = 1e-5;
      c->texts["norm_eps"] = "1e-05";
      return true;
    });
  }

  // Rows of padding without a key reach others through what is merged wrongly.
  void TryEmptyRows() {
    if (!context_.PaddedLeft(case_) || context_.rows_without_keys) return;
    Say("rows_without_keys", "0");
    const std::vector<AttentionConvention> before = list_;
    const std::pair<EmptyRow, const char*> kinds[] = {
        {EmptyRow::kUniform, "the mean of all values"}, {EmptyRow::kUnmasked, "see all keys"}};
    for (const auto& [empty, text] : kinds) {
      for (AttentionConvention convention : before) {
        convention.right.mask.empty = empty;
        convention.texts["rows_without_keys"] = text;
        list_.push_back(std::move(convention));
      }
    }
  }

  // Square weights do not tell [out, in] from [in, out].
  void TryLayouts() {
    if (case_.qkv.parts.empty() || Fused() || dump_.linear_stated || Square() != kAllProj) return;
    Add([](AttentionConvention* c) {
      c->right.project.transposed = kAllProj;
      c->texts["layout"] = "Conv1D";
      return true;
    });
  }

  void TryFusedRows() {
    if (!Fused() || Is("qkv_layout")) return;
    Say("qkv_layout", "blocks");
    Say("qkv_order", "qkv");
    std::vector<int64_t> pieces = {1};
    if (settings_.n_kv_head > 1) pieces.push_back(settings_.n_kv_head);
    const std::vector<AttentionConvention> before = list_;
    for (const int64_t count : pieces) {
      for (const std::array<Slot, 3>& order : kOrders) {
        if (count == 1 && order == kOrders[0]) continue;  // as they are
        for (AttentionConvention convention : before) {
          convention.right.project.fused_pieces = count;
          convention.right.project.fused_order = order;
          convention.texts["qkv_layout"] = count == 1 ? "blocks" : "per_head";
          convention.texts["qkv_order"] = OrderText(order);
          list_.push_back(std::move(convention));
        }
      }
    }
  }

  // Whether numbers of [B, ·] are not the same in every batch row.
  bool RowsDiffer(const std::vector<int64_t>& rows) const {
    const auto each = static_cast<int64_t>(rows.size()) / case_.B;
    return !std::equal(rows.begin() + each, rows.end(), rows.begin());
  }

  // Projections whose weights are square: q, k, v and o.
  uint8_t Square() const {
    if (case_.qkv.parts.empty()) return 0;
    const int64_t C = case_.qkv.in, D = settings_.head_dim;
    uint8_t square = 0;
    if (settings_.n_head * D == C) square |= kQProj;
    if (settings_.n_kv_head * D == C) square |= kKProj | kVProj;
    if (Fused()) square = 0;
    if (!case_.proj.parts.empty() && case_.proj.in == case_.proj.out) square |= kOProj;
    return square;
  }

  uint8_t Biases() const {
    uint8_t biases = 0;
    const auto any = [](const std::vector<double>& bias, int64_t first, int64_t count) {
      return std::any_of(bias.begin() + first, bias.begin() + first + count,
                         [](double b) { return b != 0; });
    };
    const int64_t q = settings_.n_head * settings_.head_dim;
    const int64_t kv = settings_.n_kv_head * settings_.head_dim;
    if (!case_.qkv.parts.empty()) {
      if (any(case_.qkv.bias, 0, q)) biases |= kQProj;
      if (any(case_.qkv.bias, q, kv)) biases |= kKProj;
      if (any(case_.qkv.bias, q + kv, kv)) biases |= kVProj;
    }
    if (any(case_.proj.bias, 0, case_.proj.out)) biases |= kOProj;
    return biases;
  }

  AttentionFacts FactsOf(const AttentionRecipe& right) const {
    AttentionFacts facts;
    facts.B = case_.B;
    facts.T = case_.T;
    facts.P = case_.P;
    facts.S = case_.S();
    facts.H = settings_.n_head;
    facts.Hkv = settings_.n_kv_head;
    facts.D = settings_.head_dim;
    facts.weights = !case_.qkv.parts.empty();
    facts.C = facts.weights               ? case_.qkv.in
              : !case_.proj.parts.empty() ? case_.proj.out
                                          : facts.H * facts.D;
    facts.rotary = right.rotate.q_sense == 0 ? 0 : settings_.rotary_dim;
    facts.first = right.rotate.first;
    facts.theta = right.rotate.theta;
    facts.window = settings_.window;
    facts.fused = Fused();
    facts.layout_stated = Is("qkv_layout");
    facts.linear_stated = dump_.linear_stated;
    facts.pairing_stated = Is("rope_pairing");
    facts.padded = context_.Padded();
    facts.empty_rows_stated = context_.rows_without_keys.has_value();
    facts.packed = context_.Packed();
    facts.rows_differ = RowsDiffer(context_.attention_mask) || RowsDiffer(context_.document_ids);
    facts.positions_given = !context_.position_ids.empty();
    facts.alibi = right.score.alibi;
    facts.norm = right.norm;
    facts.norm_stated = context_.qk_norm.has_value();
    facts.norm_kind_stated = context_.qk_layernorm.has_value();
    facts.gains = context_.HasGains();
    facts.norm_bias = context_.HasNormBias();
    facts.half = dump_.coarsest == DType::kF16;
    facts.biases = Biases();
    facts.square = Square();
    return facts;
  }

  const AttentionDump& dump_;
  const AttentionCase& case_;
  const AttentionContext& context_;
  const AttentionSettings& settings_;
  std::vector<AttentionConvention> list_;
};

}  // namespace

std::vector<AttentionConvention> AttentionConventions(const AttentionDump& dump) {
  return Conventions(dump).List();
}

}  // namespace heed
