#include "model/group_heads.h"

#include <fmt/format.h>

#include <algorithm>

namespace heed {
namespace {

// Where the key or value heads of a tensor lie: element (r, h, d, c) at
// offset + r·row + (h·D + d)·step + c, c in [0, step).
struct HeadPlace {
  int64_t rows = 1, row = 0, offset = 0, step = 1;
};

// The places of both kinds of heads in parameter `p` of a model of `c`: none for a tensor without.
std::vector<HeadPlace> HeadPlaces(const ModelConfig& c, const Parameter& p) {
  if (p.name.find(".k_proj.") != std::string::npos ||
      p.name.find(".v_proj.") != std::string::npos) {
    return {{1, 0, 0, p.shape.size() == 2 ? p.shape[1] : 1}};  // [out, in] or [out]
  }
  if (p.name.find(".c_attn.") == std::string::npos) return {};
  // Fused: [in, q k v] or [q k v].
  const int64_t width = p.shape.back(), rows = p.elements / width, q = c.n_head * c.head_dim;
  return {{rows, width, q}, {rows, width, q + c.n_kv_head * c.head_dim}};
}

// One new number from those of its group, `stride` apart.
float Pool(const float* x, int64_t group, int64_t stride, HeadPooling pooling) {
  if (pooling == HeadPooling::kFirst) return x[0];
  double sum = 0;
  for (int64_t g = 0; g < group; ++g) sum += x[g * stride];
  return static_cast<float>(sum / static_cast<double>(group));
}

void PoolHeads(const HeadPlace& from, const HeadPlace& to, const ModelConfig& c, int64_t n_kv_head,
               HeadPooling pooling, const float* old_values, float* new_values) {
  const int64_t group = c.n_kv_head / n_kv_head, D = c.head_dim, head = D * from.step;
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int64_t h = 0; h < n_kv_head; ++h) {
      const float* x = old_values + from.offset + r * from.row + h * group * head;
      float* y = new_values + to.offset + r * to.row + h * head;
      for (int64_t i = 0; i < head; ++i) y[i] = Pool(x + i, group, head, pooling);
    }
  }
}

// The query columns of a fused tensor stay.
void CopyQueries(const ModelConfig& c, const Parameter& from, const Parameter& to) {
  const int64_t old_width = from.shape.back(), new_width = to.shape.back();
  for (int64_t r = 0; r < from.elements / old_width; ++r) {
    std::copy_n(from.values + r * old_width, c.n_head * c.head_dim, to.data + r * new_width);
  }
}

}  // namespace

std::span<const EnumName<HeadPooling>> EnumNames(HeadPooling) {
  static constexpr EnumName<HeadPooling> kNames[] = {{HeadPooling::kMean, "mean"},
                                                     {HeadPooling::kFirst, "first"},
                                                     {HeadPooling::kRandom, "random"}};
  return kNames;
}

Result<std::unique_ptr<Gpt>> GroupHeads(const Gpt& model, int64_t n_kv_head, HeadPooling pooling,
                                        uint64_t seed) {
  const ModelConfig& c = model.config();
  if (n_kv_head < 1 || c.n_kv_head % n_kv_head != 0) {
    return BadRequest("n_kv_head", fmt::format("{}", n_kv_head),
                      fmt::format("a divisor of the model's {} key/value heads", c.n_kv_head));
  }
  ModelConfig grouped = c;
  grouped.n_kv_head = n_kv_head;
  HEED_ASSIGN(std::unique_ptr<Gpt> result, Gpt::Create(grouped, model.kernels()));
  result->Initialize(seed);
  const std::deque<Parameter>& olds = model.parameters().all();
  std::deque<Parameter>& news = result->parameters().all();
  for (size_t i = 0; i < olds.size(); ++i) {
    const std::vector<HeadPlace> from = HeadPlaces(c, olds[i]), to = HeadPlaces(grouped, news[i]);
    if (from.empty()) std::copy_n(olds[i].values, olds[i].elements, news[i].data);
    if (from.size() == 2) CopyQueries(c, olds[i], news[i]);
    for (size_t part = 0; part < from.size() && pooling != HeadPooling::kRandom; ++part) {
      PoolHeads(from[part], to[part], c, n_kv_head, pooling, olds[i].values, news[i].data);
    }
  }
  return result;
}

}  // namespace heed
