#include "optim/adamw.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

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

void Adamw::Step(const Kernels& kernels, const AdamwSettings& settings, double learning_rate,
                 double gradient_norm) {
  ++steps_;
  // As torch.nn.utils.clip_grad_norm_ has it.
  const double clip = settings.grad_clip / (gradient_norm + 1e-6);
  for (Parameter& p : parameters_->all()) {
    AdamwArgs<> args{p.elements, p.data, p.grad, m(p), v(p), learning_rate};
    args.beta1 = settings.beta1;
    args.beta2 = settings.beta2;
    args.eps = settings.eps;
    args.weight_decay = p.decayed() ? settings.weight_decay : 0.0;
    args.grad_scale = settings.grad_clip > 0 && clip < 1 ? clip : 1.0;
    args.step = steps_;
    kernels.adamw(args);
  }
}

double GradientNorm(const Kernels& kernels, const ParameterSet& parameters) {
  double sum = 0;
  for (const Parameter& p : parameters.all()) sum += kernels.sum_squares(p.grad, p.elements);
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
