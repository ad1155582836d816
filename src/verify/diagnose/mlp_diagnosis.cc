#include "verify/diagnose/mlp_diagnosis.h"

#include <optional>

#include "base/quote.h"
#include "tensor/shape.h"
#include "verify/diagnose/block_recipe.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/replay.h"

namespace heed {
namespace {

constexpr FaultKind kFaults[] = {
    {"gelu_form", "GELU by the error function where the tanh form belongs, or another form",
     "use the tanh form, with which GPT-2 was trained", "h = F.gelu(h, approximate='tanh')",
     "y = 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));",
     "one activation at x = -2.1 and 2.1: the forms differ by 4e-4"},
    {"glu_order", "the gate's activation sits on the wrong factor, or a factor is missing",
     "apply silu to the gate alone and multiply by up", "h = F.silu(gate(x)) * up(x)",
     "h[i] = Silu(gate[i]) * up[i];", "replay silu(up) gate, silu(gate up) and a missing gate"},
    {"mlp_activation", "another activation than the model's",
     "use the activation of the model's configuration", "h = F.gelu(h, approximate='tanh')",
     "h[i] = GeluTanh(h[i]);", "replay relu, silu, gelu and none"},
    {"mlp_bias_missing", "a bias of the feed-forward layer is dropped", "add the bias",
     "h = x @ W_fc + b_fc", "h[j] += bias[j];",
     "without the output's bias all rows differ by one vector"},
};

struct Matrix {
  std::vector<double> weight;  // as stored
  std::vector<double> bias;    // or empty
  int64_t in = 0, out = 0;
  bool in_out = false;  // stored [in, out]
};

struct Choices {
  Activation activation = Activation::kGeluTanh;
  Gate gate = Gate::kNone;
  bool turn_all = false;  // square weights stored the other way
  bool turned_up = false, turned_gate = false, turned_down = false;
  bool up_bias = true, gate_bias = true, down_bias = true;
};

struct MlpCase {
  Observed x, y;
  int64_t rows = 0, C = 0;
  Matrix up, gate, down;
  bool gated = false;
  bool either_layout = false;  // every weight square, and names that both layouts use
};

// [rows, out]
std::vector<double> Apply(const Matrix& m, bool turned, bool bias, const std::vector<double>& x) {
  const auto rows = static_cast<int64_t>(x.size()) / m.in;
  const bool in_out = m.in_out != turned;
  std::vector<double> y(rows * m.out);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < m.out; ++j) {
      double sum = bias && !m.bias.empty() ? m.bias[j] : 0;
      for (int64_t i = 0; i < m.in; ++i) {
        sum += x[r * m.in + i] * m.weight[in_out ? i * m.out + j : j * m.in + i];
      }
      y[r * m.out + j] = sum;
    }
  }
  return y;
}

Outputs Replay(const Choices& c, const MlpCase& mlp) {
  std::vector<double> hidden = Apply(mlp.up, c.turn_all != c.turned_up, c.up_bias, mlp.x.values);
  const std::vector<double> gate =
      mlp.gated ? Apply(mlp.gate, c.turn_all != c.turned_gate, c.gate_bias, mlp.x.values) : hidden;
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = Hidden(c.gate, c.activation, hidden[i], gate[i]);
  }
  return {Apply(mlp.down, c.turn_all != c.turned_down, c.down_bias, hidden)};
}

std::vector<Deviation<Choices>> Deviations(const MlpCase& mlp) {
  const auto activation = [](Activation value) {
    return [value](Choices* c) { c->activation = value; };
  };
  const auto gate = [](Gate value) { return [value](Choices* c) { c->gate = value; }; };
  std::vector<Deviation<Choices>> all;
  if (mlp.gated) {
    all = {{"glu_order", "gate", gate(Gate::kUp), "", "silu(up) gate"},
           {"glu_order", "gate", gate(Gate::kProduct), "", "silu(gate up)"},
           {"glu_order", "gate", gate(Gate::kUpAlone), "", "silu(up), no gate"},
           {"glu_order", "gate", gate(Gate::kGateAlone), "", "silu(gate), no up"},
           {"mlp_activation", "activation", activation(Activation::kGeluTanh), "", "gelu"},
           {"mlp_activation", "activation", activation(Activation::kGeluErf), "", "gelu (erf)"},
           {"mlp_activation", "activation", activation(Activation::kSigmoid), "", "sigmoid"}};
  } else {
    all = {
        {"gelu_form", "activation", activation(Activation::kGeluErf), "larger activations", "erf"},
        {"gelu_form", "activation", activation(Activation::kGeluSigmoid), "", "x sigmoid(1.702 x)"},
        {"gelu_form", "activation", activation(Activation::kGeluNoFactor), "",
         "the factor x forgotten"},
        {"gelu_form", "activation", activation(Activation::kGeluErfNoFactor), "",
         "erf, the factor x forgotten"},
        {"mlp_activation", "activation", activation(Activation::kSilu), "", "silu"}};
  }
  all.push_back({"mlp_activation", "activation", activation(Activation::kRelu), "", "relu"});
  all.push_back({"mlp_activation", "activation", activation(Activation::kIdentity), "", "none"});
  const auto add_matrix = [&](const Matrix& m, bool Choices::*turned, bool Choices::*bias,
                              const char* name) {
    if (m.in == m.out) {
      all.push_back(
          {"linear_transposed", name, [turned](Choices* c) { c->*turned = true; }, "", name});
    }
    if (!m.bias.empty()) {
      all.push_back({"mlp_bias_missing", bias == &Choices::up_bias ? "up bias" : name,
                     [bias](Choices* c) { c->*bias = false; }, "biases that are not 0", name});
    }
  };
  add_matrix(mlp.up, &Choices::turned_up, &Choices::up_bias, "up");
  if (mlp.gated) add_matrix(mlp.gate, &Choices::turned_gate, &Choices::gate_bias, "gate");
  add_matrix(mlp.down, &Choices::turned_down, &Choices::down_bias, "down");
  if (mlp.up.in == mlp.up.out && !mlp.either_layout) {
    all.push_back({"linear_transposed", "layout", [](Choices* c) { c->turn_all = true; }, "",
                   "every weight"});
  }
  return all;
}

// Names of the three weights in one family of models.
struct Naming {
  const char* up;
  const char* gate;
  const char* down;
  bool in_out;  // GPT-2's Conv1D, or torch.nn.Linear as nanoGPT has it under the same names
};
constexpr Naming kNamings[] = {{"c_fc", "c_gate", "c_proj", true},
                               {"up_proj", "gate_proj", "down_proj", false},
                               {"w3", "w1", "w2", false}};

// The one tensor called `word`, alone or behind a prefix; "" for none.
Result<std::string> FindName(const Dump& dump, const std::string& word) {
  std::string found;
  for (const TensorEntry& entry : dump.file().tensors()) {
    const std::string& name = entry.name;
    if (name != word && !name.ends_with("." + word)) continue;
    if (!found.empty()) {
      return Fail(ErrorKind::kFormat, dump.where(), Quoted(found) + " and " + Quoted(name),
                  "one tensor whose name ends in " + word, "save one layer alone");
    }
    found = name;
  }
  return found;
}

class CaseReader {
 public:
  CaseReader(Dump* dump, MlpCase* mlp) : dump_(*dump), mlp_(*mlp) {}

  Status Read() {
    HEED_ASSIGN(mlp_.x, dump_.Floats("x"));
    mlp_.C = mlp_.x.shape.empty() ? 1 : mlp_.x.shape.back();
    mlp_.rows = static_cast<int64_t>(mlp_.x.values.size()) / mlp_.C;
    HEED_TRY(ReadWeights());
    HEED_ASSIGN(mlp_.y, dump_.Floats("y", mlp_.x.shape, "the shape of x", /*any=*/true));
    return {};
  }

 private:
  Status ReadWeights() {
    for (const Naming& naming : kNamings) {
      HEED_ASSIGN(const std::string up, FindName(dump_, std::string(naming.up) + ".weight"));
      if (up.empty()) continue;
      HEED_ASSIGN(const std::string down, FindName(dump_, std::string(naming.down) + ".weight"));
      HEED_ASSIGN(const std::string gate, FindName(dump_, std::string(naming.gate) + ".weight"));
      if (down.empty()) return Missing(std::string(naming.down) + ".weight");
      HEED_TRY(ReadUp(up, naming, &mlp_.up));
      const int64_t F = mlp_.up.out;
      mlp_.gated = !gate.empty();
      if (mlp_.gated) HEED_TRY(ReadMatrix(gate, naming, mlp_.C, F, &mlp_.gate));
      mlp_.either_layout = naming.in_out && F == mlp_.C;
      return ReadMatrix(down, naming, F, mlp_.C, &mlp_.down);
    }
    return Missing("c_fc.weight or up_proj.weight");
  }

  tl::unexpected<Error> Missing(const std::string& name) const {
    return Fail(ErrorKind::kFormat, dump_.where(), "no tensor " + name,
                "the weights of one feed-forward layer",
                "names are c_fc and c_proj, or gate_proj, up_proj and down_proj");
  }

  // The first weight tells the inner width.
  Status ReadUp(const std::string& name, const Naming& naming, Matrix* m) {
    const std::vector<int64_t>& shape = dump_.file().Find(name)->shape;
    if (shape.size() != 2 || (shape[0] != mlp_.C && shape[1] != mlp_.C)) {
      return dump_.ShapeError(name, "[n_inner, C] or [C, n_inner] with C = " +
                                        std::to_string(mlp_.C) + ", the last axis of x");
    }
    return ReadMatrix(name, naming, mlp_.C, shape[0] == mlp_.C ? shape[1] : shape[0], m);
  }

  Status ReadMatrix(const std::string& name, const Naming& naming, int64_t in, int64_t out,
                    Matrix* m) {
    HEED_ASSIGN(Observed weight, dump_.Floats(name));
    const std::vector<int64_t> in_out = {in, out}, out_in = {out, in};
    if (weight.shape != in_out && weight.shape != out_in) {
      return dump_.ShapeError(name, ShapeText(out_in) + " or " + ShapeText(in_out));
    }
    m->in = in;
    m->out = out;
    m->in_out = in == out ? naming.in_out : weight.shape == in_out;
    m->weight = std::move(weight.values);
    std::string bias = name;
    bias.replace(bias.size() - 6, 6, "bias");
    if (!dump_.Has(bias)) return {};
    HEED_ASSIGN(Observed stored, dump_.Floats(bias, {out}, "one number for each output"));
    m->bias = std::move(stored.values);
    return {};
  }

  Dump& dump_;
  MlpCase& mlp_;
};

Result<Activation> StatedActivation(const Dump& dump, const MlpCase& mlp) {
  HEED_ASSIGN(const std::optional<std::string> stated, dump.Setting<std::string>("mlp"));
  if (!stated) return mlp.gated ? Activation::kSilu : Activation::kGeluTanh;
  const bool swiglu = *stated == "swiglu";
  if (swiglu && mlp.gated) return Activation::kSilu;
  if (*stated == "gelu" && !mlp.gated) return Activation::kGeluTanh;
  if (swiglu || *stated == "gelu") {
    return BadRequest(dump.where() + ": mlp", *stated,
                      mlp.gated ? "swiglu, for there is a gate" : "gelu, for there is no gate");
  }
  return BadRequest(dump.where() + ": mlp", "'" + *stated + "'", "gelu or swiglu");
}

// All that a search needs; `mlp` is what the replayer reads.
Status Prepare(Dump* dump, MlpCase* mlp, Replayer<Choices>* replayer,
               std::vector<Reading<Choices>>* conventions) {
  HEED_TRY(CaseReader(dump, mlp).Read());
  Reading<Choices> plain;
  HEED_ASSIGN(plain.choices.activation, StatedActivation(*dump, *mlp));
  plain.choices.gate = mlp->gated ? Gate::kGate : Gate::kNone;
  plain.names["layout"] = mlp->up.in_out ? "Conv1D" : "Linear";
  *conventions = {plain};
  if (mlp->either_layout) {
    plain.choices.turn_all = true;
    plain.names["layout"] = "Linear";
    conventions->push_back(plain);
  }
  replayer->theirs = {mlp->y};
  replayer->floor = NoiseFloorOf(mlp->y.dtype, dump->coarsest());
  replayer->replay = [mlp](const Choices& choices) { return Replay(choices, *mlp); };
  replayer->deviations = Deviations(*mlp);
  return {};
}

}  // namespace

Result<Diagnosis> DiagnoseMlp(const TensorFile& file, const std::string& where,
                              const SettingTexts& given) {
  Prepared<MlpCase, Choices> p(file, where, given);
  HEED_TRY(p.By(Prepare));
  Diagnosis diagnosis = FaultSearch<Choices>(p.replayer, p.conventions).Run();
  if (diagnosis.verdict == DiagnosisVerdict::kUnexplained) HEED_TRY(p.dump.CheckFinite(p.c.y));
  return diagnosis;
}

Result<std::optional<FaultView>> ViewMlpFault(const TensorFile& file, const SettingTexts& given,
                                              const std::string& id) {
  return Prepared<MlpCase, Choices>::View(Prepare, file, given, id);
}

std::span<const FaultKind> MlpFaults() { return kFaults; }

}  // namespace heed
