// Every fault of the catalogue, planted by plain code at sizes that are drawn anew for each seed
// and are pairwise different: what `heed diagnose` is tried on.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "support/planted_attention.h"
#include "support/planted_loss.h"
#include "support/planted_mlp.h"
#include "support/planted_model.h"
#include "support/planted_norm.h"
#include "support/planted_optimizer.h"
#include "support/planted_sampler.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/loss_diagnosis.h"
#include "verify/diagnose/mlp_diagnosis.h"
#include "verify/diagnose/model_diagnosis.h"
#include "verify/diagnose/norm_diagnosis.h"
#include "verify/diagnose/optimizer_diagnosis.h"
#include "verify/diagnose/sampler_diagnosis.h"

namespace heed {

struct PlantedFault {
  const char* kind;
  std::string id;
  // Of a dump whose numbers are stored so.
  std::function<Result<Diagnosis>(uint32_t seed, DType dtype)> diagnose;
  std::string same;      // gives the same numbers, and must be named beside it; or empty
  std::string not_bf16;  // why 16 bits cannot show it; or empty

  bool Shows(DType dtype) const { return dtype == DType::kF32 || not_bf16.empty(); }
  bool IsRight(const std::string& finding) const {
    if (same.empty()) return finding == id;
    return finding == "ambiguous: " + id + " | " + same ||
           finding == "ambiguous: " + same + " | " + id;
  }
};

// ------------------------------------------------------------------ attention

// What a fault of attention needs to show.
struct AttentionPlant {
  std::string fault;
  std::function<void(PlantedCase*)> change = [](PlantedCase*) {};
  std::set<std::string> results = {"y"};
  std::string same, not_bf16, id;  // id: where it is not the planter's word
  bool plain = false;              // shows at any sizes, and beside others
  // What becomes of a right dump in place of a planted fault; `other` has a fault planted.
  using Other = std::function<TensorSet(const char* fault)>;
  std::function<void(const PlantedCase&, const Other& other, TensorSet*)> finish;
};

// Sizes pairwise different.
inline PlantedCase PlantedSizes(uint64_t seed, const std::function<void(PlantedCase*)>& change) {
  Choice pick(seed, 9);
  PlantedCase sizes{.seed = seed};
  do {
    sizes.B = pick({2, 3, 4});
    sizes.T = pick({5, 7, 9, 11});
    sizes.Hkv = pick({2, 3, 5});
    sizes.H = sizes.Hkv * pick({2, 3, 4});
    sizes.D = pick({6, 8, 10, 14});
    sizes.C = pick({18, 22, 26, 34});
  } while (std::set<int64_t>{sizes.B, sizes.T, sizes.H, sizes.D, sizes.C}.size() < 5 ||
           sizes.B == sizes.Hkv || sizes.H == sizes.Hkv * sizes.Hkv);
  sizes.interleaved = pick({0, 1}) == 1;
  sizes.rotary_dim = sizes.D;
  change(&sizes);
  return sizes;
}

inline TensorSet PlantedDump(const AttentionPlant& plant, uint64_t seed, DType dtype) {
  const PlantedCase sizes = PlantedSizes(seed, plant.change);
  const std::set<std::string> faults =
      plant.finish ? std::set<std::string>() : std::set<std::string>{plant.fault};
  const auto dump = [&](const std::set<std::string>& planted) {
    return PlantedAttention(sizes, planted, dtype == DType::kBF16 ? StoredAsBf16 : StoredAsFloat)
        .Dump(plant.results);
  };
  TensorSet set = dump(faults);
  const auto other = [&](const char* fault) { return dump({fault}); };
  if (plant.finish) plant.finish(sizes, other, &set);
  return set;
}

inline std::vector<AttentionPlant> AttentionPlants() {
  const auto equal_heads = [](PlantedCase* c) { c->H = c->Hkv = 5 + int64_t(c->seed % 3); };
  // Halves: the planted widths of a partial rotation pair them.
  const auto partial = [](PlantedCase* c) {
    c->interleaved = false;
    c->rotary_dim = 4;
  };
  const auto window = [](PlantedCase* c) { c->window = 3; };
  const auto cache = [](PlantedCase* c) { c->P = 4; };
  const auto alibi = [](PlantedCase* c) {
    c->rope = false;
    c->alibi = true;
    // No power of two, for which there is one series alone.
    if (c->H == 4 || c->H == 8) c->H = 3 * c->Hkv;
  };
  const auto padded = [](PlantedCase* c) {
    for (int64_t b = 0; b < c->B; ++b) c->pads.push_back(b);
  };
  const auto ring = [](PlantedCase* c) {
    c->T = 3;
    c->P = 7;
  };
  const auto normed = [](PlantedCase* c) {
    c->norm = c->seed % 2 == 0 ? PlantedCase::Norm::kBefore : PlantedCase::Norm::kAfter;
    c->norm_all_heads = c->seed % 3 == 0;
  };
  const auto packed = [](PlantedCase* c) {
    for (int64_t b = 0; b < c->B; ++b) {
      c->documents.emplace_back();
      for (int64_t t = 0; t < c->T; ++t) c->documents[b].push_back((t > 1 + b % 3) + (t > 4));
    }
  };
  const auto both = [](auto first, auto second) {
    return [=](PlantedCase* c) {
      first(c);
      second(c);
    };
  };
  const auto states_positions = [](PlantedCase* c) { c->states_positions = true; };
  const auto states_empty_rows = [](PlantedCase* c) { c->states_empty_rows = true; };
  const auto kept = [](Keeping keeping) {
    return [keeping](const PlantedCase& c, const AttentionPlant::Other&, TensorSet* set) {
      *set = KeptAs(keeping, c, *set);
      set->settings["qkv_layout"] = "blocks";
    };
  };
  std::vector<AttentionPlant> all;
  for (const char* plain : {"mask_missing",
                            "mask_after_softmax",
                            "mask_polarity",
                            "mask_transposed",
                            "mask_diagonal_excluded",
                            "mask_shifted_by_one",
                            "mask_01_added",
                            "mask_fill_too_weak",
                            "softcap_after_mask",
                            "scale_missing",
                            "scale_d_model",
                            "scale_num_heads",
                            "scale_linear",
                            "scale_value",
                            "scale_head_dim_vs_width",
                            "softmax_axis_query",
                            "softmax_axis_head",
                            "softmax_axes_mixed",
                            "softmax_tile_local_max",
                            "softmax_plus_one_shift",
                            "attention_transposed",
                            "dropout_live_in_eval",
                            "heads_not_split",
                            "heads_merged_untransposed",
                            "heads_merged_wrong_lead",
                            "gqa_tiled",
                            "gqa_divisor",
                            "gqa_repeat_axis",
                            "kv_swapped",
                            "bias_missing",
                            "rope_pairing",
                            "rope_missing",
                            "rope_sign",
                            "rope_k_sign_only",
                            "rope_on_v",
                            "rope_theta",
                            "rope_wrong_axis",
                            "rope_twice",
                            "rope_mixed_layouts",
                            "rope_cos_plus_sin",
                            "rope_fragments_joined"}) {
    all.push_back({.fault = plain, .plain = true});
  }
  all.push_back({.fault = "scale_zero", .same = "mask_convention_mixed"});
  all.push_back({.fault = "mask_convention_mixed", .same = "scale_zero"});
  for (const char* fault : {"qk_swapped", "qk_from_one_tensor"})
    all.push_back({fault, equal_heads});
  for (const char* fault : {"rope_partial_ignored", "rope_freq_width"}) {
    all.push_back({fault, partial});
  }
  for (const char* fault : {"window_off_by_one", "window_sign", "window_value"}) {
    // More keys than any of their windows.
    all.push_back(
        {fault, both(window, [](PlantedCase* c) { c->T = 11 + 2 * int64_t(c->seed % 2); })});
  }
  for (const char* fault :
       {"position_restart", "causal_align_top_left", "cache_not_read", "rope_window_constant",
        "position_upper_layers", "beam_cache_not_reordered", "cache_hole", "cache_head_stride",
        "cache_dtype_reinterpreted", "prefix_reuse_misaligned"}) {
    all.push_back({fault, cache});
  }
  all.push_back({"evicted_length_as_position", both(cache, [](PlantedCase* c) { c->first = 3; })});
  all.push_back({.fault = "ring_wraps", .change = ring, .id = "ring_cache_overwrite"});
  for (const char* fault : {"alibi_slope_exponent", "alibi_non_power_of_two", "alibi_missing",
                            "alibi_sign", "alibi_scaled"}) {
    all.push_back({fault, alibi});
  }
  for (const char* fault : {"padding_not_masked", "mask_fold_order", "fully_masked_row_nan"}) {
    all.push_back({fault, padded});
  }
  for (const char* fault : {"fully_masked_row_uniform", "mask_min_plus_min"}) {
    // Three rows of padding and more: one of them is hidden twice.
    all.push_back(
        {fault, both(both(padded, states_empty_rows), [](PlantedCase* c) { c->pads.back() = 3; })});
  }
  all.push_back({"left_pad_positions", both(padded, states_positions), {"y", "q_rot"}});
  all.push_back({"packing_not_isolated", packed});
  all.push_back({"packing_positions_not_reset", both(packed, states_positions), {"y", "q_rot"}});
  for (const char* fault : {"qk_norm_missing", "qk_norm_after_rope", "qk_norm_axis",
                            "qk_norm_gain_missing", "qk_norm_kind"}) {
    all.push_back({fault, normed});
  }
  all.push_back({"softmax_no_max", [](PlantedCase* c) { c->spread = 8; }});
  all.push_back({.fault = "coarse_positions",
                 .change = [](PlantedCase* c) { c->first = 1000; },
                 .id = "rope_low_precision"});
  all.push_back({"rope_output_not_reinterleaved", [](PlantedCase* c) { c->interleaved = true; }});
  all.push_back({.fault = "mask_fp16_overflow",
                 .not_bf16 = "float16 alone overflows",
                 .finish = [](const PlantedCase&, const AttentionPlant::Other&, TensorSet* set) {
                   for (double& value : (*set)["y"].values) value = std::nan("");
                   (*set)["x"].dtype = (*set)["y"].dtype = DType::kF16;
                 }});
  all.push_back({.fault = "qkv_per_head_layout", .finish = kept(Keeping::kFusedPerHead)});
  all.push_back({.fault = "qkv_tp_layout",
                 .change =
                     [](PlantedCase* c) {
                       c->Hkv = 4;
                       c->H = 4 * (2 + int64_t(c->seed % 2));
                     },
                 .finish = kept(Keeping::kFusedForTwo)});
  all.push_back(
      {.fault = "qkv_order",
       .change = equal_heads,
       .finish = [kept](const PlantedCase& c, const AttentionPlant::Other& other, TensorSet* set) {
         // Written as k, q, v where q, k, v is stated.
         for (const char* part : {".weight", ".bias"}) {
           std::swap((*set)[std::string("q_proj") + part], (*set)[std::string("k_proj") + part]);
         }
         kept(Keeping::kFused)(c, other, set);
       }});
  all.push_back({.fault = "linear_transposed",
                 .change =
                     [](PlantedCase* c) {
                       c->C = 24 + 6 * int64_t(c->seed % 3);
                       c->H = c->Hkv = c->C / 6;
                       c->D = c->rotary_dim = 6;
                     },
                 .finish =
                     [](const PlantedCase& c, const AttentionPlant::Other&, TensorSet* set) {
                       const char* name = c.seed % 2 == 0 ? "q_proj.weight" : "o_proj.weight";
                       (*set)[name] = Turned((*set)[name]);
                     }});
  all.push_back({.fault = "batch_axis_attended",
                 .change =
                     [](PlantedCase* c) {
                       c->B = 7;
                       c->T = 3 + int64_t(c->seed % 3);
                     },
                 .finish =
                     [](const PlantedCase& c, const AttentionPlant::Other&, TensorSet* set) {
                       // x and y of a batch whose axes a sequence-first layer takes for time and
                       // batch.
                       for (const char* name : {"x", "y"}) {
                         const Array right = (*set)[name];
                         Array& turned = (*set)[name];
                         turned.shape = {c.T, c.B, c.C};
                         for (int64_t r = 0; r < c.B * c.T; ++r) {
                           const int64_t to = r % c.T * c.B + r / c.T;
                           std::copy_n(right.values.begin() + r * c.C, c.C,
                                       turned.values.begin() + to * c.C);
                         }
                       }
                     }});
  all.push_back({.fault = "dropout_scaling_missing"});
  all.back().finish = [](const PlantedCase&, const AttentionPlant::Other& other, TensorSet* set) {
    *set = other("dropout_scaling_missing");
    set->settings["dropout"] = "0.3";
  };
  // In training behind an evaluation, and before one.
  all.push_back({.fault = "dropout_unused"});
  all.back().finish = [](const PlantedCase&, const AttentionPlant::Other&, TensorSet* set) {
    set->settings["dropout"] = "0.3";
    (*set)["y_first"] = (*set)["y"];
  };
  all.push_back({.fault = "dropout_off_for_good"});
  all.back().finish = [](const PlantedCase&, const AttentionPlant::Other& other, TensorSet* set) {
    set->settings["dropout"] = "0.3";
    (*set)["y_first"] = other("dropout_live_in_eval")["y"];
  };
  // A table of angles that a call of the same length, at position 0, left behind.
  all.push_back({.fault = "rope_table_cache_key", .change = cache});
  all.back().finish = [](const PlantedCase&, const AttentionPlant::Other& other, TensorSet* set) {
    (*set)["y_first"] = (*set)["y"];
    (*set)["y"] = other("position_restart")["y"];
  };
  all.push_back({.fault = "mask_dropped_on_a_path"});
  all.back().finish = [](const PlantedCase&, const AttentionPlant::Other& other, TensorSet* set) {
    (*set)["y_eval"] = (*set)["y"];
    (*set)["y"] = other("mask_missing")["y"];
  };
  // As many rows as there are sequences: a backward pass for x [rows, C] that meets [B, T, C].
  all.push_back({.fault = "gradient_rank_assumption", .results = {"y", "merged"}});
  all.back().finish = [](const PlantedCase& c, const AttentionPlant::Other&, TensorSet* set) {
    const int64_t width = c.H * c.D;
    Array dy{{c.B, c.T, c.C}, {}}, weight{{c.C, width}, std::vector<double>(c.C * width)};
    for (int64_t i = 0; i < c.B * c.T * c.C; ++i) {
      dy.values.push_back(StoredAsBf16(RandomNormal({c.seed, 8, 1}, i)));
    }
    for (int64_t r = 0; r < c.B; ++r) {
      for (int64_t i = 0; i < c.C * width; ++i) {
        weight.values[i] +=
            dy.values[r * c.C + i / width] * (*set)["merged"].values[r * width + i % width];
      }
    }
    for (double& value : weight.values) value = StoredAsFloat(value);
    (*set)["dy"] = dy;
    (*set)["grad.o_proj.weight"] = weight;
  };
  return all;
}

// ------------------------------------------------------------------ all kinds

class PlantedFaults {
 public:
  static std::vector<PlantedFault> List() {
    PlantedFaults faults;
    faults.AddAttention();
    faults.AddNorms();
    faults.AddMlp();
    faults.AddModels();
    faults.AddLosses();
    faults.AddSamplers();
    faults.AddOptimizers();
    return std::move(faults.all_);
  }

 private:
  using Diagnose = Result<Diagnosis> (*)(const TensorFile&, const std::string&,
                                         const SettingTexts&);
  using Make = std::function<TensorSet(uint32_t seed, DType dtype)>;

  void Add(const char* kind, const std::string& id, Diagnose diagnose, Make make,
           const std::string& same = "", const std::string& not_bf16 = "") {
    all_.push_back({kind, id,
                    [diagnose, make = std::move(make)](uint32_t seed, DType dtype) {
                      const TensorFile file = make(seed, dtype).File();
                      return diagnose(file, "planted", {});
                    },
                    same, not_bf16});
  }

  void AddAttention() {
    for (const AttentionPlant& plant : AttentionPlants()) {
      Add(
          "attention", plant.id.empty() ? plant.fault : plant.id, DiagnoseAttention,
          [plant](uint32_t seed, DType dtype) { return PlantedDump(plant, seed, dtype); },
          plant.same, plant.not_bf16);
    }
  }

  void AddNorm(const char* id, const std::function<void(PlainNorm*)>& plant) {
    Add("norm", id, DiagnoseNorm, [plant, id](uint32_t seed, DType dtype) {
      PlainNorm right;
      right.T = 2 + int64_t(seed);
      right.C = 11 + 4 * int64_t(seed);
      right.centre = right.with_bias = seed % 2 == 0 || id == std::string("norm_bias_missing");
      PlainNorm wrong = right;
      plant(&wrong);
      const NormDump dump(seed, dtype, right);
      return dump.Set(dtype, right, wrong.Of(dump.x, dump.weight, dump.bias));
    });
  }

  void AddNorms() {
    AddNorm("norm_unbiased", [](PlainNorm* n) { n->unbiased = true; });
    AddNorm("norm_eps_outside_sqrt", [](PlainNorm* n) { n->eps_outside = true; });
    AddNorm("norm_eps_value", [](PlainNorm* n) { n->eps = 1e-3; });
    AddNorm("norm_eps_value", [](PlainNorm* n) { n->eps = 1e-6; });
    AddNorm("norm_gain_plus_one", [](PlainNorm* n) { n->gain_offset = 1; });
    AddNorm("norm_kind", [](PlainNorm* n) { n->centre = !n->centre; });
    AddNorm("norm_gain_missing", [](PlainNorm* n) { n->with_gain = false; });
    AddNorm("norm_bias_missing", [](PlainNorm* n) { n->with_bias = false; });
    AddNorm("norm_axis", [](PlainNorm* n) { n->over_positions = true; });
    AddNorm("norm_axis", [](PlainNorm* n) { n->over_sequence = true; });
    AddNorm("norm_cast_order", [](PlainNorm* n) {
      n->cast = [](double x) { return AsStored(DType::kBF16, {x})[0]; };
    });
    AddCancellation();
  }

  // Far from 0 the squares of the mean and of the numbers cancel in float32.
  void AddCancellation() {
    const auto make = [](uint32_t seed, DType dtype) {
      PlainNorm right;
      right.T = 2 + int64_t(seed);
      right.C = 11 + 4 * int64_t(seed);
      PlainNorm wrong = right;
      wrong.float_cancels = true;
      const NormDump dump(seed, dtype, right, /*mean=*/200);
      return dump.Set(dtype, right, wrong.Of(dump.x, dump.weight, dump.bias));
    };
    Add("norm", "norm_cancellation", DiagnoseNorm, make, "",
        "float32 loses less here than 16 bits round away");
  }

  void AddMlp() {
    const auto gpt2 = [this](const char* id, double (*act)(double), bool bias = true) {
      Add("mlp", id, DiagnoseMlp, [=](uint32_t seed, DType dtype) {
        const MlpDump dump(seed, 9 + seed, 23 + 2 * seed, dtype);
        return dump.Gpt2Set(dump.Gpt2(act, true, bias));
      });
    };
    gpt2("gelu_form", MlpDump::Erf);
    gpt2("mlp_activation", [](double x) { return std::max(x, 0.0); });
    gpt2("mlp_bias_missing", MlpDump::Tanh, false);
    Add("mlp", "glu_order", DiagnoseMlp, [](uint32_t seed, DType dtype) {
      const MlpDump dump(seed, 8 + seed, 19 + seed, dtype);
      return dump.LlamaSet(dump.Llama([](double g, double u) { return MlpDump::Silu(u) * g; }));
    });
  }

  void AddModel(const char* id, Position position, bool tied = true) {
    all_.push_back({"model", id,
                    [=](uint32_t seed, DType dtype) {
                      const PlantedModel model(seed, position, tied);
                      const TensorFile file = model.Set(id, dtype).File();
                      return DiagnoseModel(file, "planted", {}, model.Folder());
                    },
                    "", ""});
  }

  void AddModels() {
    for (const char* id : {"residual_from_normed", "norm_argument_wrong", "residual_missing",
                           "norm_after_branch", "final_norm_missing", "embedding_scale",
                           "position_offset_two", "position_offset_one", "position_missing"}) {
      AddModel(id, Position::kLearned);
    }
    AddModel("head_untied", Position::kLearned, /*tied=*/false);
    AddModel("sinusoidal_layout", Position::kSinusoidal);
    AddModel("rope_scaling_missing", Position::kRope);
    AddModel("rope_permute_gqa", Position::kRope);
  }

  void AddLoss(const char* id, double (*reported)(const LossDump&), bool ignored = true,
               const char* number = "loss") {
    Add("loss", id, DiagnoseLoss, [=](uint32_t seed, DType dtype) {
      const LossDump dump(seed, dtype, ignored);
      return dump.Set(reported(dump), "targets", number);
    });
  }

  void AddLosses() {
    AddLoss("labels_not_shifted", [](const LossDump& d) { return d.MeanAt(-1); });
    AddLoss("labels_shifted_twice", [](const LossDump& d) { return d.MeanAt(1); });
    AddLoss("ignored_targets_counted", [](const LossDump& d) {
      return d.MeanAt(0) * double(d.Targets()) / double(d.B * d.T);
    });
    AddLoss("accumulation_token_mean", [](const LossDump& d) { return d.MeanOfMeans(); });
    AddLoss(
        "perplexity_averaging", [](const LossDump& d) { return d.MeanOfExponentials(); }, true,
        "perplexity");
    AddLoss(
        "stop_token_ignored", [](const LossDump& d) { return d.MeanWithout(d.Label(1, 2)); },
        false);
    AddLoss("loss_not_averaged",
            [](const LossDump& d) { return d.MeanAt(0) * double(d.Targets()); });
    AddLoss("loss_in_bits", [](const LossDump& d) { return d.MeanAt(0) / std::log(2.0); });
    AddLoss("loss_softmax_twice", [](const LossDump& d) { return d.MeanAt(0, true); });
  }

  void AddSampler(const char* id, const PlantedSampler& sampler) {
    Add("sampler", id, DiagnoseSampler,
        [=](uint32_t seed, DType dtype) { return sampler.Random(seed, dtype, id); });
  }

  void AddSamplers() {
    for (const char* id : {"temperature_twice", "temperature_on_probabilities",
                           "temperature_ignored", "temperature_inverted"}) {
      AddSampler(id, {.temperature = 0.7});
    }
    AddSampler("temperature_zero", {.temperature = 0});
    AddSampler("top_k_off_by_one", {.temperature = 0.7, .top_k = 3});
    for (const char* id : {"top_p_drops_crossing", "top_p_ascending", "filter_ignored",
                           "probabilities_not_renormalised"}) {
      AddSampler(id, {.temperature = 0.9, .top_p = 0.6});
    }
    AddSampler("top_p_one_is_greedy", {.temperature = 0.8});
    AddSampler("sort_not_undone", {.temperature = 0.7, .top_p = 0.9});
    for (const char* id : {"repetition_penalty_sign", "repetition_penalty_ignored",
                           "repetition_penalty_per_occurrence"}) {
      AddSampler(id, {.temperature = 0.8, .penalty = 1.4});
    }
  }

  // A rate and a decay that 16 bits show.
  void AddOptimizer(const char* id, double size, int64_t step, double clip = 0) {
    Add("optimizer", id, DiagnoseOptimizer, [=](uint32_t seed, DType dtype) {
      OptimizerDump dump(seed, dtype, size, step, clip);
      dump.rate = 0.05;
      dump.decay = 1;
      return dump.Set(id);
    });
  }

  void AddOptimizers() {
    AddOptimizer("adam_bias_correction", 0.05, 5);
    AddOptimizer("adam_eps_place", 1e-6, 1);
    for (const char* id : {"decay_on_norms", "decay_coupled", "decay_missing", "decay_without_rate",
                           "adam_betas_swapped", "gradient_sign"}) {
      AddOptimizer(id, 0.05, 3);
    }
    AddOptimizer("clip_misplaced", 0.05, 4, 0.2);
    AddOptimizer("resume_partial", 0.05, 9);
    AddOptimizer("schedule_zero_start", 0.05, 1);
    for (const char* id : {"accumulation_not_averaged", "zero_grad_misplaced"}) {
      Add("optimizer", id, DiagnoseOptimizer, [=](uint32_t seed, DType dtype) {
        OptimizerDump dump(seed, dtype, 0.05, 3);
        dump.rate = 0.05;
        dump.DrawMicroBatches(seed, id);
        return dump.Set(id);
      });
    }
    // The first update, one of the warm-up, one of the decay.
    for (const int64_t step : {1, 3, 9}) {
      Add("optimizer", "schedule_off_by_one", DiagnoseOptimizer, [=](uint32_t seed, DType dtype) {
        OptimizerDump dump(seed, dtype, 0.05, step);
        dump.rate = 0.5;  // a step of the cosine is small
        dump.warmup = 3 + int64_t(seed);
        dump.decay_until = 12 + 3 * int64_t(seed);
        return dump.Set("schedule_off_by_one");
      });
    }
    Add("optimizer", "learning_rate_value", DiagnoseOptimizer, [](uint32_t seed, DType dtype) {
      OptimizerDump dump(seed, dtype, 0.05, 4);
      dump.rate = 0.05;
      TensorSet set = dump.Set("");
      set.settings["learning_rate"] = "0.1";
      return set;
    });
  }

  std::vector<PlantedFault> all_;
};

}  // namespace heed
