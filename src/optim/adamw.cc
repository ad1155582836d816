#include "optim/adamw.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/parallel.h"
#include "nn/pass.h"
#include "optim/muon.h"

namespace heed {

Result<std::unique_ptr<Adamw>> Adamw::Create(ParameterSet* parameters) {
  std::unique_ptr<Adamw> adamw(new Adamw(parameters));
  const size_t bytes = static_cast<size_t>(parameters->block_elements()) * 2 * sizeof(float);
  adamw->moments_ = Buffer(bytes);
  if (adamw->moments_.data() == nullptr && bytes > 0) {
    return BadRequest("memory",
                      fmt::format("{:.1f} MiB of optimizer state that the system does not give",
                                  static_cast<double>(bytes) / (1 << 20)),
                      "", "use a smaller model");
  }
  return adamw;
}

AdamwArgs<> Adamw::NextInPass(const AdamwSettings& settings, double learning_rate) {
  AdamwArgs<> args;
  args.learning_rate = learning_rate;
  args.beta1 = settings.beta1;
  args.beta2 = settings.beta2;
  args.eps = settings.eps;
  args.weight_decay = settings.weight_decay;
  args.step = steps_ + 1;
  args.m = moments_.floats();
  args.v = args.m + parameters_->block_elements();
  return args;
}

void Adamw::Step(const Kernels& kernels, const AdamwSettings& settings, double learning_rate,
                 double gradient_norm) {
  // As torch.nn.utils.clip_grad_norm_ has it.
  const double clip = settings.grad_clip / (gradient_norm + 1e-6);
  const double grad_scale = settings.grad_clip > 0 && clip < 1 ? clip : 1.0;
  if (settings.muon > 0) StepMatrices(kernels, settings, learning_rate, grad_scale);
  const UpdateInPass next{NextInPass(settings, learning_rate)};
  for (Parameter& p : parameters_->all()) {
    if (p.shares_grad || (settings.muon > 0 && p.linear())) continue;
    AdamwArgs<> args = next.Of(p);
    if (!p.decayed()) args.weight_decay = 0;
    args.grad_scale = grad_scale;
    kernels.adamw(args);
  }
  ++steps_;
}

void Adamw::StepMatrices(const Kernels& kernels, const AdamwSettings& settings,
                         double learning_rate, double grad_scale) {
  std::vector<MuonArgs> matrices;
  for (Parameter& p : parameters_->all()) {
    if (!p.linear()) continue;
    const int64_t rows = p.shape[0], row = p.shape[1];
    int64_t first = 0;
    for (const int64_t width : p.maps.empty() ? std::vector<int64_t>{row} : p.maps) {
      MuonArgs args{rows, width, row, p.data + first, p.grad + first, m(p) + first};
      args.learning_rate = learning_rate * settings.muon;
      args.weight_decay = settings.weight_decay;
      args.grad_scale = grad_scale;
      matrices.push_back(args);
      first += width;
    }
  }
  scratch_.resize(static_cast<size_t>(NumThreads()));
  // A matrix is one piece: its products are small, and one after another on one thread.
  ParallelFor(static_cast<int64_t>(matrices.size()), [&](int64_t i) {
    MuonStep(kernels, matrices[static_cast<size_t>(i)],
             &scratch_[static_cast<size_t>(ThreadIndex())]);
  });
}

double GradientNorm(const Kernels& kernels, const ParameterSet& parameters, double squares) {
  double sum = squares;
  for (const Parameter& p : parameters.all()) {
    if (!p.shares_grad) sum += kernels.sum_squares(p.grad, p.elements);
  }
  return std::sqrt(sum);
}

double Schedule::At(int64_t iteration) const {
  if (iteration < warmup_iters) {
    return learning_rate * static_cast<double>(iteration + 1) /
           static_cast<double>(warmup_iters + 1);
  }
  if (iteration >= lr_decay_iters) return min_lr;
  const double share = static_cast<double>(iteration - warmup_iters) /
                       static_cast<double>(lr_decay_iters - warmup_iters);
  return min_lr + 0.5 * (1.0 + std::cos(std::numbers::pi * share)) * (learning_rate - min_lr);
}

}  // namespace heed
