// Causal self-attention with grouped queries and rotary positions in plain C++, and how heed asks
// it:
//
//     g++ -std=c++20 -O2 examples/diagnose/attention.cc -o attention
//     build/heed diagnose --run ./attention --n-kv-head 2 --position rope --rope-pairing half
#include <cmath>

#include "heed_live.h"

using heed_live::Question;
using heed_live::Tensor;

// y [rows, out] = x [rows, in] · W [out, in]ᵀ + b
std::vector<float> Project(const std::vector<float>& x, const Question& question,
                           const std::string& name) {
  const Tensor& weight = question.tensors.at(name + ".weight");
  const auto bias = question.tensors.find(name + ".bias");
  const int64_t out = weight.shape[0], in = weight.shape[1];
  const int64_t rows = static_cast<int64_t>(x.size()) / in;
  std::vector<float> y(rows * out);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      if (bias != question.tensors.end()) y[r * out + o] = bias->second.values[o];
      for (int64_t i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * weight.values[o * in + i];
    }
  }
  return y;
}

// Turns the halves of every head of x [B, T, heads·D].
void Rotate(std::vector<float>* x, int64_t T, int64_t heads, int64_t D, double theta) {
  const int64_t rows = static_cast<int64_t>(x->size()) / (heads * D);
  for (int64_t r = 0; r < rows * heads; ++r) {
    const double position = static_cast<double>(r / heads % T);
    float* row = x->data() + r * D;
    for (int64_t i = 0; i < D / 2; ++i) {
      const double angle = position * std::pow(theta, -2.0 * i / D);
      const double x0 = row[i], x1 = row[i + D / 2];
      row[i] = static_cast<float>(x0 * std::cos(angle) - x1 * std::sin(angle));
      row[i + D / 2] = static_cast<float>(x0 * std::sin(angle) + x1 * std::cos(angle));
    }
  }
}

Tensor Attention(const Question& question) {
  const Tensor& x = question.tensors.at("x");
  const int64_t B = x.shape[0], T = x.shape[1];
  const int64_t H = question.Size("n_head"), Hkv = question.Size("n_kv_head");
  const int64_t D = question.Size("head_dim");
  std::vector<float> q = Project(x.values, question, "q_proj");
  std::vector<float> k = Project(x.values, question, "k_proj");
  const std::vector<float> v = Project(x.values, question, "v_proj");
  if (question.settings.contains("position") && question.settings.at("position") == "rope") {
    Rotate(&q, T, H, D, 10000);
    Rotate(&k, T, Hkv, D, 10000);
  }
  std::vector<float> merged(B * T * H * D);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t kv = h / (H / Hkv);
      for (int64_t i = 0; i < T; ++i) {
        std::vector<double> weight(i + 1);
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          for (int64_t d = 0; d < D; ++d) {
            weight[j] += double(q[((b * T + i) * H + h) * D + d]) *
                         double(k[((b * T + j) * Hkv + kv) * D + d]);
          }
          weight[j] /= std::sqrt(static_cast<double>(D));
          most = std::max(most, weight[j]);
        }
        for (double& w : weight) sum += w = std::exp(w - most);
        for (int64_t d = 0; d < D; ++d) {
          double z = 0;
          for (int64_t j = 0; j <= i; ++j) {
            z += weight[j] / sum * double(v[((b * T + j) * Hkv + kv) * D + d]);
          }
          merged[((b * T + i) * H + h) * D + d] = static_cast<float>(z);
        }
      }
    }
  }
  return {x.shape, Project(merged, question, "o_proj")};
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: attention INPUT OUTPUT\n";
    return 2;
  }
  heed_live::Write(argv[argc - 1], {{"y", Attention(heed_live::Read(argv[argc - 2]))}});
  return 0;
}
