#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numbers>

#include "base/buffer.h"
#include "base/quote.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/folder.h"
#include "tensor/convert.h"
#include "train/held_out.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

std::string Inside(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

int64_t CountTargets(const Batch& batch) {
  return std::count_if(batch.targets.begin(), batch.targets.end(),
                       [](int32_t target) { return target >= 0; });
}

// Appends lines to metrics.jsonl; each reaches the system as a whole.
class MetricsFile {
 public:
  static Result<MetricsFile> Open(const std::string& path, const char* mode) {
    MetricsFile file;
    file.path_ = path;
    file.file_.reset(std::fopen(path.c_str(), mode));
    if (!file.file_) return Fail(ErrorKind::kIo, path, std::strerror(errno), "a writable file");
    return file;
  }
  Status Append(const MetricsRow& row) {
    const std::string line = MetricsLine(row);
    if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
        std::fflush(file_.get()) != 0) {
      return Fail(ErrorKind::kIo, path_, std::strerror(errno), "room for a line",
                  "free some space and go on with --resume");
    }
    return {};
  }

 private:
  struct Close {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<FILE, Close> file_;
};

// Keeps the rows of metrics.jsonl that lie before `iteration`: a run that was killed may have
// logged more than its checkpoint holds.
Status DropRowsFrom(const std::string& path, int64_t iteration) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  HEED_ASSIGN(const std::vector<MetricsRow> rows, ReadMetrics(path));
  std::string text;
  for (const MetricsRow& row : rows) {
    if (row.iter < iteration) text += MetricsLine(row);
  }
  const std::string_view piece = text;
  return WriteFileAtomically(path, {&piece, 1}, /*overwrite=*/true);
}

// Index of the first number that is not finite, or -1.
int64_t FirstNonFinite(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return -1;
}

}  // namespace

uint64_t DataFingerprint(const BatchSource& source) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  mix(static_cast<uint64_t>(source.train_tokens()));
  mix(static_cast<uint64_t>(source.val_tokens()));
  constexpr int64_t kRows = 64;
  Batch batch;
  source.TrainBatch(0, 0, kRows, &batch);
  for (int32_t token : batch.tokens) mix(static_cast<uint64_t>(token));
  const int64_t windows = std::min(kRows, source.ValWindows());
  if (windows > 0) {
    source.ValBatch(0, windows, windows, &batch);
    for (int32_t token : batch.tokens) mix(static_cast<uint64_t>(token));
  }
  return hash;
}

Trainer::Trainer(Gpt* model, const Tokenizer& tokenizer, const BatchSource& source,
                 const TrainSettings& settings, uint64_t seed, const std::string& folder)
    : model_(model),
      tokenizer_(tokenizer),
      source_(source),
      settings_(settings),
      folder_(folder),
      batches_(static_cast<size_t>(settings.grad_accum)) {
  state_.seed = seed;
}

Result<std::unique_ptr<Trainer>> Trainer::Create(Gpt* model, const Tokenizer& tokenizer,
                                                 const BatchSource& source,
                                                 const TrainSettings& settings, uint64_t seed,
                                                 const std::string& folder) {
  // All batches of an update are kept, for its numbers may have to be shown.
  const double batch_bytes = 2.0 * sizeof(int32_t) * static_cast<double>(source.block()) *
                             static_cast<double>(settings.grad_accum * settings.batch_size);
  if (!MemoryHolds(batch_bytes)) {
    return BadRequest(
        "memory",
        fmt::format("{:.1f} MiB of batches that the system does not give", batch_bytes / (1 << 20)),
        "", "use a smaller --grad-accum or --batch-size");
  }
  model->set_arithmetic(settings.dtype);
  std::unique_ptr<Trainer> trainer(new Trainer(model, tokenizer, source, settings, seed, folder));
  trainer->state_.data_fingerprint = DataFingerprint(source);
  trainer->floor_ = source.loss_floor(settings.eval_iters * settings.batch_size);
  HEED_ASSIGN(trainer->adamw_, Adamw::Create(&model->parameters()));
  HEED_ASSIGN(trainer->activations_,
              Activations::Create(*model, settings.batch_size, source.block(), /*training=*/true,
                                  settings.recompute));
  const AdamwSettings adamw = settings.adamw();
  trainer->updates_in_pass_ = adamw.grad_clip == 0 && adamw.muon == 0 && settings.grad_accum == 1 &&
                              !trainer->activations_->narrow();
  HEED_TRY(model->parameters().AllocateGradients(trainer->updates_in_pass_));
  return trainer;
}

size_t Trainer::planned_bytes() const {
  const ParameterSet& p = model_->parameters();
  const auto floats = static_cast<size_t>(3 * p.block_elements() + p.gradient_elements());
  return floats * sizeof(float) + activations_->plan().bytes();
}

Status Trainer::Resume() {
  HEED_ASSIGN(const TrainState saved, LoadCheckpoint(folder_, model_, adamw_.get()));
  if (saved.data_fingerprint != state_.data_fingerprint) {
    return BadRequest(folder_, "a run on other data", "the text that it was started on",
                      "put that text back, or train with --init on the new one");
  }
  state_ = saved;
  elapsed_before_ = saved.elapsed_s;
  for (const char* folder : {"", "checkpoint", "best"}) RemoveLeftovers(Inside(folder_, folder));
  return DropRowsFrom(Inside(folder_, "metrics.jsonl"), state_.iteration);
}

double Trainer::Elapsed() const {
  return elapsed_before_ +
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Trainer::DrawBatches() {
  const int64_t step = settings_.overfit_batch ? 0 : state_.iteration;
  targets_ = 0;
  for (int64_t a = 0; a < settings_.grad_accum; ++a) {
    source_.TrainBatch(state_.seed, step, settings_.batch_size, &batches_[a],
                       a * settings_.batch_size);
    targets_ += CountTargets(batches_[a]);
  }
}

Pass Trainer::TrainingPass(int64_t a) const {
  Pass pass = model_->NewPass(batches_[a].B, batches_[a].T);
  pass.training = true;
  pass.accumulate = a > 0;
  pass.seed = state_.seed;
  pass.step = static_cast<uint32_t>(state_.iteration * settings_.grad_accum + a);
  return pass;
}

double Trainer::TrainingLoss() {
  double loss = 0;
  for (int64_t a = 0; a < settings_.grad_accum; ++a) {
    loss += model_->Loss(TrainingPass(a), batches_[a].tokens.data(), batches_[a].targets.data(),
                         activations_.get());
  }
  return loss / static_cast<double>(targets_);
}

double Trainer::ComputeGradients(double learning_rate) {
  double loss = 0;
  UpdateInPass update{adamw_->NextInPass(settings_.adamw(), learning_rate), /*measure=*/true};
  for (int64_t a = 0; a < settings_.grad_accum; ++a) {
    Pass pass = TrainingPass(a);
    if (updates_in_pass_) pass.update = &update;
    loss += model_->LossAndBackward(pass, batches_[a].tokens.data(), batches_[a].targets.data(),
                                    1.0f / static_cast<float>(targets_), activations_.get());
  }
  gradient_norm_ = GradientNorm(model_->kernels(), model_->parameters(), update.squares);
  return loss / static_cast<double>(targets_);
}

void Trainer::Evaluate(MetricsRow* row) {
  const int64_t B = settings_.batch_size;
  const HeldOutLoss loss =
      MeasureHeldOut(*model_, tokenizer_, source_, settings_.eval_iters * B, B, activations_.get());
  row->val_loss = loss.sum / static_cast<double>(loss.targets);
  row->val_perplexity = std::exp(*row->val_loss);
  row->val_bits_per_byte = loss.sum / std::numbers::ln2 / static_cast<double>(loss.bytes);
  if (floor_) row->val_floor = floor_->nats_per_token;
}

Status Trainer::RecordEvaluation(MetricsRow* row, const TrainEvents& events) {
  if (source_.ValWindows() > 0) {
    Evaluate(row);
    if (*row->val_loss < state_.best_val_loss) {
      state_.best_val_loss = *row->val_loss;
      if (state_.iteration > 0) {
        HEED_TRY(SaveModel(Inside(folder_, "best"), *model_, &tokenizer_, /*overwrite=*/true));
      }
    }
  }
  row->elapsed_s = Elapsed();
  if (events.on_evaluation) return events.on_evaluation(*row);
  return {};
}

std::string Trainer::DescribeNonFinite(double loss) {
  for (const Parameter& p : model_->parameters().all()) {
    const int64_t i = FirstNonFinite(p.data, p.elements);
    if (i >= 0) return fmt::format("parameter {} at index {} is {}", p.name, i, p.data[i]);
  }
  if (!std::isfinite(loss)) {
    // Backward has used some activations up: run the pass that went wrong once more.
    for (int64_t a = 0; a < settings_.grad_accum; ++a) {
      model_->Forward(TrainingPass(a), batches_[a].tokens.data(), activations_.get());
      const Plan& plan = activations_->plan();
      for (size_t t = 0; t < plan.tensors().size(); ++t) {
        const PlannedTensor& tensor = plan.tensors()[t];
        if (!plan.Keeps(tensor.lifetime)) continue;
        std::vector<float> values(static_cast<size_t>(tensor.elements()));
        Decode(tensor.dtype, reinterpret_cast<const std::byte*>(plan.data(t)), values.size(),
               values.data());
        const int64_t i = FirstNonFinite(values.data(), tensor.elements());
        if (i < 0) continue;
        return fmt::format("activation {} at index {} is {}", tensor.name, i, values[i]);
      }
    }
    return fmt::format("the loss is {}", loss);
  }
  for (const Parameter& p : model_->parameters().all()) {
    const int64_t i = FirstNonFinite(p.grad, p.elements);
    if (i >= 0) return fmt::format("gradient of {} at index {} is {}", p.name, i, p.grad[i]);
  }
  return fmt::format("the gradient norm is {}", gradient_norm_);
}

Status Trainer::CheckFinite(double loss) {
  if (std::isfinite(loss) && std::isfinite(gradient_norm_)) return {};
  if (std::isfinite(loss) && updates_in_pass_) {
    return Fail(ErrorKind::kNumeric, fmt::format("step {}", state_.iteration),
                fmt::format("the gradient norm is {}", gradient_norm_), "a finite number",
                "without clipping weights have taken their steps by now; use --grad-clip 1, or a "
                "smaller --learning-rate");
  }
  const std::string what = DescribeNonFinite(loss);
  const std::string folder = Inside(folder_, "nonfinite");
  HEED_TRY(SaveModel(folder, *model_, &tokenizer_, /*overwrite=*/true));
  const std::string batch_path = Inside(folder, "batch.safetensors");
  // All micro-batches, for any of them may be the one.
  Batch all = batches_.front();
  for (size_t a = 1; a < batches_.size(); ++a) {
    const Batch& more = batches_[a];
    all.B += more.B;
    all.tokens.insert(all.tokens.end(), more.tokens.begin(), more.tokens.end());
    all.targets.insert(all.targets.end(), more.targets.begin(), more.targets.end());
  }
  const std::vector<int64_t> shape = {all.B, all.T};
  const std::vector<TensorToWrite> tensors = {{"tokens", DType::kI32, shape, all.tokens.data()},
                                              {"targets", DType::kI32, shape, all.targets.data()}};
  HEED_TRY(WriteSafetensors(batch_path, tensors,
                            {{"step", fmt::format("{}", state_.iteration)}, {"found", what}},
                            /*overwrite=*/true));
  return Fail(ErrorKind::kNumeric, fmt::format("step {}", state_.iteration), what,
              "a finite number",
              fmt::format("replay it with: heed logits {} --tokens-file {} --grad --out replay"
                          ".safetensors; a smaller --learning-rate often helps",
                          ShellWord(folder), ShellWord(batch_path)));
}

Status Trainer::Save() {
  state_.elapsed_s = Elapsed();
  // The model first: where there is a checkpoint to go on from, its model's folder is whole.
  HEED_TRY(SaveModel(folder_, *model_, &tokenizer_, /*overwrite=*/true));
  return SaveCheckpoint(folder_, *model_, adamw_.get(), state_);
}

Result<TrainOutcome> Trainer::Run(const TrainEvents& events) {
  start_ = std::chrono::steady_clock::now();
  HEED_ASSIGN(MetricsFile metrics, MetricsFile::Open(Inside(folder_, "metrics.jsonl"),
                                                     state_.iteration == 0 ? "w" : "a"));
  const int64_t tokens_per_iteration =
      settings_.batch_size * settings_.grad_accum * source_.block();
  const Schedule schedule = settings_.schedule();
  TrainOutcome outcome;
  double training_s = 0;  // without evaluations and checkpoints, since the last row
  int64_t trained = 0;    // iterations in it
  while (true) {
    const int64_t i = state_.iteration;
    const bool last = i >= settings_.max_iters;
    const bool stop = events.should_stop && events.should_stop();
    if (i % settings_.checkpoint_interval == 0 || last || stop) {
      HEED_TRY(Save());
      if (events.on_checkpoint) events.on_checkpoint(i);
    }
    if (stop && !last) {
      outcome.stopped = true;
      break;
    }
    DrawBatches();
    MetricsRow row;
    row.iter = i;
    row.tokens = i * tokens_per_iteration;
    row.lr = schedule.At(i);
    const bool evaluate = i % settings_.eval_interval == 0 || last;
    if (evaluate) {
      // Before the pass backward, which may change weights.
      row.train_loss = TrainingLoss();
      HEED_TRY(CheckFinite(row.train_loss));
      HEED_TRY(RecordEvaluation(&row, events));
    }
    const double before = Elapsed();
    // The last gradients are only measured.
    row.train_loss = ComputeGradients(last ? 0 : row.lr);
    HEED_TRY(CheckFinite(row.train_loss));
    row.perplexity = std::exp(row.train_loss);
    row.grad_norm = gradient_norm_;
    training_s += Elapsed() - before;
    ++trained;
    row.tokens_per_second = static_cast<double>(trained * tokens_per_iteration) / training_s;
    row.elapsed_s = Elapsed();
    if (events.on_iteration) events.on_iteration(row);
    if (evaluate || i % settings_.log_interval == 0) {
      HEED_TRY(metrics.Append(row));
      training_s = 0;
      trained = 0;
    }
    outcome.last = row;
    if (last) break;
    const double update = Elapsed();
    adamw_->Step(model_->kernels(), settings_.adamw(), row.lr, gradient_norm_);
    training_s += Elapsed() - update;
    ++state_.iteration;
  }
  outcome.best_val_loss = state_.best_val_loss;
  return outcome;
}

}  // namespace heed
