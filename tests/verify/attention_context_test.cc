// heed diagnose on attention that knows padding, documents, slopes, norms of q and k, rings.
#include "verify/diagnose/attention_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/planted_attention.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/attention_replay.h"

namespace heed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Norm = PlantedCase::Norm;

Result<Diagnosis> Diagnose(const TensorSet& set) {
  return DiagnoseAttention(set.File(), "dump", {});
}

std::string Answer(const TensorSet& set) {
  const auto diagnosis = Diagnose(set);
  if (!diagnosis) return diagnosis.error().Message();
  std::string text(NameOf(diagnosis->verdict));
  for (const Explanation& explanation : diagnosis->explanations) {
    for (const std::string& fault : explanation.faults) text += " " + fault;
    text += ",";
  }
  return text;
}

// Sizes pairwise different; D, C and T are the case's own.
std::vector<PlantedCase> Cases() {
  return {{.B = 2, .T = 7, .H = 6, .Hkv = 3, .D = 8, .C = 26, .rotary_dim = 8, .seed = 31},
          {.B = 3,
           .T = 9,
           .H = 12,
           .Hkv = 4,
           .D = 6,
           .C = 22,
           .interleaved = true,
           .rotary_dim = 6,
           .seed = 32},
          {.B = 4, .T = 8, .H = 9, .Hkv = 3, .D = 10, .C = 34, .rotary_dim = 10, .seed = 33}};
}

void ExpectNamed(const PlantedCase& sizes, const std::string& fault,
                 const std::set<std::string>& results = {"y"}) {
  for (const bool bf16 : {false, true}) {
    const auto store = bf16 ? StoredAsBf16 : StoredAsFloat;
    EXPECT_EQ(Answer(PlantedAttention(sizes, {}, store).Dump(results)), "correct,")
        << fault << " " << sizes.seed << " bf16 " << bf16;
    EXPECT_EQ(Answer(PlantedAttention(sizes, {fault}, store).Dump(results)), "fault " + fault + ",")
        << sizes.seed << " bf16 " << bf16;
  }
}

TEST(AttentionContext, NamesFaultsOfAlibi) {
  for (PlantedCase sizes : Cases()) {
    sizes.rope = false;
    sizes.alibi = true;
    for (const char* fault : {"alibi_slope_exponent", "alibi_non_power_of_two", "alibi_missing",
                              "alibi_sign", "alibi_scaled", "mask_missing", "gqa_tiled"}) {
      ExpectNamed(sizes, fault);
    }
  }
}

// One more in each batch row.
PlantedCase LeftPadded(PlantedCase sizes) {
  for (int64_t b = 0; b < sizes.B; ++b) sizes.pads.push_back(b);
  return sizes;
}

TEST(AttentionContext, NamesFaultsOfPadding) {
  for (const PlantedCase& sizes : Cases()) {
    for (const char* fault : {"padding_not_masked", "mask_fold_order", "fully_masked_row_nan",
                              "scale_missing", "mask_shifted_by_one", "softmax_axis_query"}) {
      ExpectNamed(LeftPadded(sizes), fault);
    }
  }
}

// Hugging Face has padding at position 1.
TEST(AttentionContext, PaddingThatIsSeenStandsSomewhere) {
  for (PlantedCase sizes : Cases()) {
    sizes = LeftPadded(sizes);
    sizes.counts_tokens = true;
    for (const int64_t at : {0, 1}) {
      sizes.padding_stands_at = at;
      ExpectNamed(sizes, "padding_not_masked");
    }
  }
}

TEST(AttentionContext, PositionsFromThePadShowInQRot) {
  for (PlantedCase sizes : Cases()) {
    sizes = LeftPadded(sizes);
    sizes.states_positions = true;
    ExpectNamed(sizes, "left_pad_positions", {"y", "q_rot"});
    // With RoPE, y alone cannot tell.
    EXPECT_EQ(Answer(PlantedAttention(sizes, {"left_pad_positions"}, StoredAsFloat).Dump()),
              "correct,");
  }
}

TEST(AttentionContext, PositionsFromThePadShowBehindACache) {
  for (PlantedCase sizes : Cases()) {
    sizes = LeftPadded(sizes);
    sizes.P = 5;
    sizes.states_positions = true;
    ExpectNamed(sizes, "left_pad_positions");
    ExpectNamed(sizes, "padding_not_masked");
  }
}

TEST(AttentionContext, NamesFaultsOfPackedRows) {
  for (PlantedCase sizes : Cases()) {
    for (int64_t b = 0; b < sizes.B; ++b) {
      std::vector<int64_t> ids(sizes.T);
      for (int64_t t = 0; t < sizes.T; ++t) ids[t] = (t > 1 + b % 3) + (t > 4);
      sizes.documents.push_back(ids);
    }
    ExpectNamed(sizes, "packing_not_isolated");
    ExpectNamed(sizes, "mask_missing");
    sizes.states_positions = true;
    ExpectNamed(sizes, "packing_positions_not_reset", {"y", "q_rot"});
    EXPECT_EQ(
        Answer(PlantedAttention(sizes, {"packing_positions_not_reset"}, StoredAsFloat).Dump()),
        "correct,");
  }
}

TEST(AttentionContext, NamesFaultsOfHeadNorms) {
  for (PlantedCase sizes : Cases()) {
    for (const bool all_heads : {false, true}) {
      for (const Norm place : {Norm::kBefore, Norm::kAfter}) {
        sizes.norm = place;
        sizes.norm_all_heads = all_heads;
        for (const char* fault : {"qk_norm_missing", "qk_norm_after_rope", "qk_norm_axis",
                                  "qk_norm_gain_missing", "rope_theta"}) {
          ExpectNamed(sizes, fault);
        }
      }
    }
    // Rotations keep lengths.
    sizes.norm_all_heads = sizes.norm_gain = false;
    EXPECT_EQ(Answer(PlantedAttention(sizes, {"qk_norm_after_rope"}, StoredAsFloat).Dump()),
              "correct,");
  }
}

TEST(AttentionContext, NamesFaultsOfLayerNormsOfHeads) {
  for (PlantedCase sizes : Cases()) {
    sizes.norm_layer = true;
    for (const bool bias : {false, true}) {
      for (const Norm place : {Norm::kBefore, Norm::kAfter}) {
        sizes.norm = place;
        sizes.norm_bias = bias;
        sizes.norm_all_heads = (sizes.seed % 2 == 0) == bias;
        for (const char* fault : {"qk_norm_missing", "qk_norm_after_rope", "qk_norm_axis",
                                  "qk_norm_gain_missing", "qk_norm_kind"}) {
          ExpectNamed(sizes, fault);
        }
        if (!bias) continue;
        const TensorSet set =
            PlantedAttention(sizes, {"qk_norm_bias_missing"}, StoredAsFloat).Dump();
        EXPECT_EQ(Answer(set), "fault qk_norm_gain_missing,") << sizes.seed;
      }
    }
    sizes.norm_layer = sizes.norm_bias = sizes.norm_all_heads = false;
    ExpectNamed(sizes, "qk_norm_kind");
    // A mean does not turn with the channels: even without gains the side of the rotation shows.
    sizes.norm_layer = true;
    sizes.norm_gain = false;
    ExpectNamed(sizes, "qk_norm_after_rope");
  }
}

TEST(AttentionContext, TheKindOfAHeadNormIsAConventionWhereNothingStatesIt) {
  for (PlantedCase sizes : Cases()) {
    sizes.norm = Norm::kBefore;
    for (const bool layer : {false, true}) {
      sizes.norm_layer = layer;
      TensorSet set = PlantedAttention(sizes, {}, StoredAsFloat).Dump();
      set.settings.erase("qk_layernorm");
      // As Phi and Persimmon call it.
      for (const char* letter : {"q", "k"}) {
        set.Rename(std::string(letter) + "_norm.weight",
                   "self_attn." + std::string(letter) + "_layernorm.weight");
      }
      const auto diagnosis = Diagnose(set);
      ASSERT_TRUE(diagnosis.has_value()) << diagnosis.error().Message();
      EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kCorrect);
      EXPECT_EQ(diagnosis->conventions.at("qk_layernorm"), layer ? "true" : "false");
    }
  }
}

TEST(AttentionContext, NamesPiecesOfKeys) {
  for (const PlantedCase& sizes : Cases()) ExpectNamed(sizes, "rope_fragments_joined");
}

// A ring of P rows that holds the past; the chunk is written where `slot` says, and read with the
// causal mask of the rows' order.
TEST(AttentionContext, NamesAnOverwrittenRing) {
  for (PlantedCase sizes : Cases()) {
    sizes.T = 3;
    sizes.P = 7;
    for (const bool wraps : {true, false}) {
      for (const auto store : {StoredAsFloat, StoredAsBf16}) {
        PlantedAttention planted(sizes, {wraps ? "ring_wraps" : "ring_clamps"}, store);
        // Over the newest rows, it is as if these were never seen.
        EXPECT_EQ(Answer(planted.Dump()),
                  wraps ? "fault ring_cache_overwrite,"
                        : "ambiguous ring_cache_overwrite, prefix_reuse_misaligned,")
            << sizes.seed;
      }
    }
  }
}

// Of sequences that are taken for positions no row is cached: none can be skipped, none
// overwritten.
TEST(AttentionContext, FaultsOfTheCacheChangeNothingWithoutOne) {
  PlantedCase sizes = Cases()[0];
  sizes.P = 7;
  sizes.T = 3;
  const auto dump =
      ReadAttentionDump(PlantedAttention(sizes, {}, StoredAsFloat).Dump().File(), "dump", {});
  ASSERT_TRUE(dump.has_value());
  AttentionRecipe recipe;
  recipe.project.batch_as_time = true;
  AttentionReplay replay(dump->attention, dump->context);
  const auto whole = *replay.Tensor(recipe, Stage::kY);
  for (const CacheChoice choice :
       {CacheChoice::kEndSkipped, CacheChoice::kRingEarly, CacheChoice::kRingClamped}) {
    recipe.cache.cache = choice;
    recipe.cache.skipped = choice == CacheChoice::kEndSkipped ? 2 : 0;
    EXPECT_EQ(*replay.Tensor(recipe, Stage::kY), whole);
  }
}

// A gain behind the rotation does not turn with it: y shows from where positions are counted.
TEST(AttentionContext, AGainBehindTheRotationShowsTheFirstPosition) {
  for (PlantedCase sizes : Cases()) {
    sizes.norm = PlantedCase::Norm::kAfter;
    sizes.first = 1;
    TensorSet set = PlantedAttention(sizes, {}, StoredAsFloat).Dump();
    set.settings.erase("rope_first_position");
    EXPECT_EQ(Answer(set), "correct,") << sizes.seed;
  }
}

TEST(AttentionContext, RandomCorrectOnesAreNeverAccused) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    EXPECT_EQ(Answer(RandomCorrectInContext(seed)), "correct,") << seed;
  }
}

// Padding behind the tokens hides behind the causal mask.
TEST(AttentionContext, SaysWhatPaddingBehindTheTokensHides) {
  PlantedCase sizes = Cases()[0];
  sizes.pads = {-2, 0};
  const auto diagnosis =
      Diagnose(PlantedAttention(sizes, {"padding_not_masked"}, StoredAsFloat).Dump());
  ASSERT_TRUE(diagnosis.has_value());
  EXPECT_EQ(diagnosis->verdict, DiagnosisVerdict::kCorrect);
  EXPECT_THAT(diagnosis->seen, testing::Contains(HasSubstr("pad on the left")));
}

// Press et al. (2022): 8 heads have 1/2, 1/4 .. 1/256.
TEST(AttentionContext, SlopesAreThoseOfThePaper) {
  EXPECT_THAT(AlibiSlopes(8, 0),
              ElementsAre(0.5, 0.25, 0.125, 0.0625, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8));
  // 2 heads have 2^-4 and 2^-8; the third is the first of those of 4.
  EXPECT_THAT(AlibiSlopes(3, 0), ElementsAre(0x1p-4, 0x1p-8, 0x1p-2));
  EXPECT_THAT(AlibiSlopesOddsFirst(3), ElementsAre(0x1p-4, 0x1p-8, 0x1p-2));
  EXPECT_THAT(AlibiSlopesOddsFirst(4), ElementsAre(0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8));
}

TEST(AttentionContext, RefusesWhatDoesNotFit) {
  const TensorSet right = PlantedAttention(LeftPadded(Cases()[0]), {}, StoredAsFloat).Dump();
  const auto with = [&](const std::string& name, Array array) {
    TensorSet set = right;
    set[name] = std::move(array);
    return Answer(set);
  };
  EXPECT_THAT(with("attention_mask", {{2, 6}, std::vector<double>(12, 1), DType::kI64}),
              HasSubstr("\"attention_mask\": found [2, 6], expected [B, S] = [2, 7]"));
  EXPECT_THAT(with("attention_mask", {{2, 7}, std::vector<double>(14, -1e9)}),
              HasSubstr("\"attention_mask\""));
  EXPECT_THAT(with("attention_mask", {{2, 7}, std::vector<double>(14, 2), DType::kI64}),
              HasSubstr("found 2 at [0, 0], expected 0 to 1"));
  EXPECT_THAT(with("position_ids", {{3, 7}, std::vector<double>(21, 1), DType::kI64}),
              HasSubstr("[B, T] = [2, 7]"));
  EXPECT_THAT(with("q_norm.weight", {{8}, std::vector<double>(8, 1)}), HasSubstr("k_norm.weight"));
  TensorSet set = right;
  set["q_norm.weight"] = {{9}, std::vector<double>(9, 1)};
  set["k_norm.weight"] = {{8}, std::vector<double>(8, 1)};
  EXPECT_THAT(Answer(set), HasSubstr("[head_dim] = [8], or [heads*head_dim] = [48]"));
  set = right;
  set["q_norm.weight"] = set["k_norm.weight"] = {{8}, std::vector<double>(8, 1)};
  set["q_norm.bias"] = {{8}, std::vector<double>(8, 1)};
  EXPECT_THAT(Answer(set), HasSubstr("no tensor \"k_norm.bias\""));
  set["k_norm.bias"] = {{9}, std::vector<double>(9, 1)};
  EXPECT_THAT(Answer(set), HasSubstr("\"k_norm.bias\": found [9], expected that of"));
  set["k_norm.bias"] = set["q_norm.bias"];
  set.settings["qk_layernorm"] = "false";
  EXPECT_THAT(Answer(set), HasSubstr("an RMS norm has no bias"));
  set = right;
  set.settings["qk_norm"] = "yes";
  EXPECT_THAT(Answer(set), HasSubstr("qk_norm: found 'yes'"));
  set.settings.erase("qk_norm");
  set.settings["alibi"] = "true";
  EXPECT_THAT(Answer(set), HasSubstr("alibi: found true with position rope"));
}

}  // namespace
}  // namespace heed
