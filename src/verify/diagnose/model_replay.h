// A whole model computed in double by any recipe, from the weights of its folder.
//
// Letters: B sequences, T positions, n of them once more behind a cache, C width, V vocabulary.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inspect/attention_trace.h"
#include "model/gpt.h"
#include "verify/diagnose/attention_recipe.h"
#include "verify/diagnose/block_recipe.h"
#include "verify/diagnose/replay.h"

namespace heed {

enum class ResidualChoice : uint8_t {
  kRight,        // x + f(norm(x))
  kFromNormed,   // norm(x) + f(norm(x))
  kIntoBranch,   // x + f(norm(x) + x)
  kNormAfter,    // norm(x + f(x))
  kNoAttention,  // attention's branch is not added to x
  kNoMlp,        // the MLP's is not
};

enum class TableChoice : uint8_t {
  kRight,
  kMissing,
  kOffsetOne,
  kOffsetTwo,
  kSinesFirst,  // all sines, then all cosines
};

// Rows of the key weights between llama.cpp's interleaved order and Hugging Face's halves.
enum class KeyRows : uint8_t {
  kRight,
  kUndoneByQueryHeads,  // ordered by n_kv_head, undone by n_head
  kDoneByQueryHeads,    // the reverse
};

struct ModelRecipe {
  AttentionRecipe attention;        // of whole sequences
  AttentionRecipe decode;           // behind a cache
  bool upper_layers_ahead = false;  // layers above the first count new tokens twice
  bool decode_in_steps = false;     // the n positions one by one, not as one chunk
  NormChoice norm;
  bool final_norm = true;
  ResidualChoice residual = ResidualChoice::kRight;
  Activation activation = Activation::kGeluTanh;
  Gate gate = Gate::kNone;
  bool turned_up = false, turned_gate = false, turned_down = false;  // square weights
  bool up_bias = true, gate_bias = true, down_bias = true;
  double embedding_factor = 1, logit_factor = 1;
  bool embedding_as_head = false;
  TableChoice table = TableChoice::kRight;
  KeyRows key_rows = KeyRows::kRight;
  bool pads_hidden = true;
  bool positions_from_pad = false;  // counted from the pad, not from the first token
  bool decode_from_pad = false;     // behind the cache alone
};

// The right recipe of a resolved config.
ModelRecipe RightRecipe(const ModelConfig& config);

// What was saved of a model's run.
struct ModelInput {
  int64_t B = 0, T = 0;
  std::vector<int64_t> tokens;        // [B, T]
  std::vector<int64_t> first, count;  // [B]: real tokens of a row, the others are padding
  int64_t n_decode = 0;
  // Tapped places, "resid_post.0", in the order of `outputs`.
  std::vector<std::string> taps;
};

class ModelReplay {
 public:
  // `model` must outlive this.
  ModelReplay(Gpt* model, ModelInput input);

  // The taps, logits [B, T, V] with 0 at padding, and, with n_decode, the logits [B, n, V] of the
  // last positions behind a cache.
  Outputs Run(const ModelRecipe& recipe);

  // Columns of the logits that Beginning computes; none: all of them.
  void LookAt(std::span<const int64_t> columns);
  // Logits [n, columns] of the first n tokens of the first row, from these tokens alone. Nothing
  // where by this recipe others take part in them.
  std::optional<std::vector<double>> Beginning(const ModelRecipe& recipe, int64_t n);

 private:
  using Numbers = std::vector<double>;
  struct Matrix {
    std::vector<float> weight;  // [out, in]
    Numbers bias;               // or empty
    int64_t in = 0, out = 0;
  };
  // Rows of the head, and of the embedding in its place: [vocabulary, C].
  struct Heads {
    std::span<const float> own, embedding;
  };
  struct NormWeights {
    Numbers gain, bias;
  };
  struct Layer {
    NormWeights norm_1, norm_2;
    AttentionCase attention;  // weights; the numbers of a call are put in
    Matrix up, gate, down;
    Numbers past_k, past_v;  // [B, Hkv, P, D]
  };
  // Sequences that run together.
  struct Group {
    int64_t B = 0, T = 0;
    std::vector<int64_t> tokens;  // [B, T]
    int64_t row = 0, skip = 0;    // where in the batch; leading positions that are padding
    int64_t pads = 0;             // padding before the row's first token
  };
  // One call on T positions behind P.
  struct Call {
    const Group& group;
    int64_t P, T;
    bool decode;
    bool tapped;
  };

  static Matrix MatrixOf(const Linear& linear);
  static NormWeights NormOf(const Norm& norm);
  AttentionCase AttentionOf(const Attention& attention) const;
  SavedLinear WithKeyRows(const SavedLinear& qkv, KeyRows rows) const;
  std::vector<Group> Groups(const ModelRecipe& recipe) const;
  static int64_t Origin(const ModelRecipe& recipe, const Call& call);
  Numbers Embed(const ModelRecipe& recipe, const Call& call) const;
  int64_t TableRow(const ModelRecipe& recipe, const Call& call, int64_t t) const;
  Numbers Attend(const ModelRecipe& recipe, const Call& call, int64_t layer, const Numbers& x);
  Numbers FeedForward(const ModelRecipe& recipe, const Call& call, int64_t layer, const Numbers& x);
  Numbers Branch(const ModelRecipe& recipe, const Call& call, int64_t layer, bool mlp,
                 const Numbers& x);
  void Block(const ModelRecipe& recipe, const Call& call, int64_t layer, Numbers* x);
  Numbers Logits(const ModelRecipe& recipe, const Call& call, const Heads& heads);
  void Forget();
  void Decode(const ModelRecipe& recipe, const Group& group, Numbers* out);
  void Tap(const Call& call, const char* place, int64_t layer, const Numbers& values);
  void TapHeads(const Call& call, const char* place, int64_t layer, int64_t heads,
                const Numbers& values);

  const ModelConfig config_;
  const ModelInput input_;
  std::span<const float> embedding_;  // [V, C]
  Numbers table_;                     // [block_size, C] or empty
  std::vector<Layer> layers_;
  NormWeights final_norm_;
  std::span<const float> head_;                   // [V, C]
  std::vector<float> own_rows_, embedding_rows_;  // those that are looked at
  std::map<std::string, Numbers> tapped_;
};

}  // namespace heed
