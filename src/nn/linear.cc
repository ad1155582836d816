#include "nn/linear.h"

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

void Linear::Forward(const Pass& pass, const float* x, int64_t rows, const Output& output) const {
  MatmulArgs<> args = Product();
  args.M = rows;
  args.a = x;
  args.a_row = in;
  args.c = output.y;
  args.ldc = output.ldy;
  args.bias = bias == nullptr ? nullptr : bias->values;
  args.residual = output.residual;
  args.epilogue = output.epilogue;
  args.aux = output.aux;
  args.arithmetic = pass.arithmetic;
  args.packed = weight->packed;
  pass.kernels->matmul(args);
}

void Linear::BackwardInput(const Pass& pass, const float* dy, int64_t lddy, int64_t rows, float* dx,
                           bool accumulate, float* aux) const {
  MatmulArgs<> args{rows, in, out};
  args.a = dy;
  args.a_row = lddy;
  args.b = weight->values;
  args.b_row = out_in ? in : 1;
  args.b_col = out_in ? 1 : out;
  args.c = dx;
  args.ldc = in;
  args.accumulate = accumulate;
  args.epilogue = aux == nullptr ? Epilogue::kNone : Epilogue::kGeluBackward;
  args.aux = aux;
  args.arithmetic = pass.arithmetic;
  pass.kernels->matmul(args);
}

void Linear::BackwardWeight(const Pass& pass, const float* x, const float* dy, int64_t lddy,
                            int64_t rows) const {
  MatmulArgs<> args{in, out, rows};
  args.a = x;
  args.a_row = 1;
  args.a_col = in;
  args.b = dy;
  args.b_row = lddy;
  if (out_in) {
    args = {out, in, rows};
    args.a = dy;
    args.a_row = 1;
    args.a_col = lddy;
    args.b = x;
    args.b_row = in;
  }
  args.c = weight->grad;
  args.ldc = args.N;
  args.accumulate = pass.accumulate;
  args.arithmetic = pass.arithmetic;
  pass.kernels->matmul(args);
  if (bias != nullptr) {
    pass.kernels->column_sum(dy, rows, out, lddy, bias->grad, pass.accumulate);
  }
  if (weight->shares_grad) pass.update->Step(*pass.kernels, *weight);
}

}  // namespace heed
