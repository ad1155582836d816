#include "nn/linear.h"

#include <utility>

namespace heed {

Linear Linear::Add(ParameterSet* parameters, const std::string& name, int64_t in, int64_t out,
                   bool out_in, bool bias, Init init) {
  Linear linear{in, out, out_in};
  linear.weight = out_in ? parameters->Add(name + ".weight", "out in", {out, in}, init)
                         : parameters->Add(name + ".weight", "in out", {in, out}, init);
  if (bias) linear.bias = parameters->Add(name + ".bias", "out", {out}, Init::kZeros);
  return linear;
}

MatmulArgs<> Linear::Product() const {
  MatmulArgs<> args{0, out, in};
  args.b = weight->values;
  args.b_row = out_in ? 1 : out;
  args.b_col = out_in ? in : 1;
  return args;
}

void Linear::SetOutput(const Output& output, MatmulArgs<>* args) {
  args->c = output.y;
  args->ldc = output.ldy;
  args->residual = output.residual;
  args->epilogue = output.epilogue;
  args->aux = output.aux;
  args->c_bf16 = output.y_bf16;
  args->aux_bf16 = output.aux_bf16;
}

void Linear::Forward(const Pass& pass, Factor x, int64_t rows, const Output& output) const {
  if (rows == 0) return;
  MatmulArgs<> args = Product();
  args.M = rows;
  args.a = x.floats;
  args.a_bf16 = x.bf16;
  args.a_row = in;
  SetOutput(output, &args);
  args.bias = bias == nullptr ? nullptr : bias->values;
  args.arithmetic = pass.arithmetic;
  args.packed = weight->packed;
  pass.kernels->matmul(args);
}

void Linear::BackwardInput(const Pass& pass, Factor dy, int64_t lddy, int64_t rows,
                           const Output& dx, bool accumulate) const {
  MatmulArgs<> args{rows, in, out};
  args.a = dy.floats;
  args.a_bf16 = dy.bf16;
  args.a_row = lddy;
  args.b = weight->values;
  args.b_row = out_in ? in : 1;
  args.b_col = out_in ? 1 : out;
  SetOutput(dx, &args);
  args.accumulate = accumulate;
  args.arithmetic = pass.arithmetic;
  pass.kernels->matmul(args);
}

void Linear::BackwardWeight(const Pass& pass, Factor x, Factor dy, int64_t lddy,
                            int64_t rows) const {
  MatmulArgs<> args{in, out, rows};
  args.a_col = in;
  args.b_row = lddy;
  Factor left = x, right = dy;
  if (out_in) {
    std::swap(args.M, args.N);
    std::swap(args.a_col, args.b_row);
    std::swap(left, right);
  }
  args.a = left.floats;
  args.a_bf16 = left.bf16;
  args.a_row = 1;
  args.b = right.floats;
  args.b_bf16 = right.bf16;
  args.c = weight->grad;
  args.ldc = args.N;
  args.accumulate = pass.accumulate;
  args.arithmetic = pass.arithmetic;
  pass.kernels->matmul(args);
  if (bias != nullptr) {
    const Kernels& kernels = *pass.kernels;
    if (dy.bf16 != nullptr) {
      kernels.column_sum_bf16(dy.bf16, rows, out, lddy, bias->grad, pass.accumulate);
    } else {
      kernels.column_sum(dy.floats, rows, out, lddy, bias->grad, pass.accumulate);
    }
  }
  if (weight->shares_grad) pass.update->Step(*pass.kernels, *weight);
}

}  // namespace heed
