#include "model/parameter_loader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/mapped_file.h"
#include "tensor/shape.h"

namespace heed {
namespace {

constexpr size_t kMostNamed = 8;  // misfits in one line
constexpr const char* kTwoModels = "the settings and the weights are of two models";

std::string Listed(const std::vector<std::string>& misfits) {
  const size_t named = std::min(misfits.size(), kMostNamed);
  std::string text = fmt::format("{}", fmt::join(misfits.begin(), misfits.begin() + named, "; "));
  if (named < misfits.size()) text += fmt::format("; and {} more", misfits.size() - named);
  return text;
}

// The numbers of the tensor where they lie, or null where that is no place for floats.
const float* InPlace(const SourceTensor& tensor) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.bytes.data()) % alignof(float) == 0;
  return tensor.type == BlockType::kF32 && aligned
             ? reinterpret_cast<const float*>(tensor.bytes.data())
             : nullptr;
}

}  // namespace

std::optional<BlockType> PackedType(Weights weights) {
  switch (weights) {
    case Weights::kBf16:
      return BlockType::kBF16;
    case Weights::kQ8_0:
      return BlockType::kQ8_0;
    case Weights::kQ4_0:
      return BlockType::kQ4_0;
    default:
      return std::nullopt;
  }
}

Status SourceTensor::Read(float* out) const {
  if (read) return read(out);
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  DecodeBlocks(type, bytes.data(), n, out);
  return {};
}

namespace {

// Fills memory of the parameter's own.
Status Copy(const FileOrder& order, const SourceTensor& tensor, Gpt* model, Parameter* p) {
  if (p->data == nullptr) HEED_TRY(model->parameters().Allocate(p));
  if (IsAsInMemory(order, model->config(), *p)) return tensor.Read(p->data);
  std::vector<float> values(static_cast<size_t>(p->elements));
  HEED_TRY(tensor.Read(values.data()));
  FromFileOrder(order, model->config(), *p, values.data(), p->data);
  return {};
}

}  // namespace

Status ParameterLoader::Fill(Parameter* p, const SourceTensor& tensor) {
  if (!filled_.insert(p).second) {
    misfits_.push_back(fmt::format("{}, a second tensor for {}", tensor.name, p->name));
    return {};
  }
  const std::vector<int64_t> shape = ShapeIn(order_, *p);
  if (tensor.shape != shape) {
    misfits_.push_back(fmt::format("{} of shape {} in place of {}", tensor.name,
                                   ShapeText(tensor.shape), ShapeText(shape)));
    return {};
  }
  p->file_name = tensor.name;
  report_.used.push_back(tensor.name);
  (p->shape.size() > 1 ? types_ : vector_types_).insert(tensor.type);
  const bool as_in_memory = IsAsInMemory(order_, model_->config(), *p);
  const std::optional<BlockType> packed = TypeOf(*p, tensor);
  const bool floats = weights_ != Weights::kOwned && InPlace(tensor) != nullptr;
  const bool reordered = floats && !packed && !as_in_memory && p->factor();
  if ((packed == tensor.type || reordered) && HasColumns(order_, *p) && !tensor.bytes.empty()) {
    p->rows = FileRows(order_, model_->config(), *p);
    p->packed = {tensor.type, p->K(), p->N(), nullptr, tensor.bytes.data(), p->rows};
    in_place_.push_back(tensor.bytes);
    return {};
  }
  const bool borrowed = floats && as_in_memory;
  if (borrowed) ParameterSet::Borrow(p, InPlace(tensor));
  if (borrowed && !packed) {
    in_place_.push_back(tensor.bytes);
    return {};
  }
  if (weights_ != Weights::kOwned) PrepareToRead(tensor.bytes);
  HEED_TRY(packed ? Pack(p, tensor, *packed) : Copy(order_, tensor, model_, p));
  ReleaseRead(tensor.bytes);
  return {};
}

std::optional<BlockType> ParameterLoader::TypeOf(const Parameter& p,
                                                 const SourceTensor& tensor) const {
  if (weights_ == Weights::kOwned || !p.factor()) return std::nullopt;
  const BlockType type = PackedType(weights_).value_or(tensor.type);
  return CanPack(type, p.K()) ? std::optional(type) : std::nullopt;
}

Status ParameterLoader::Pack(Parameter* p, const SourceTensor& tensor, BlockType type) {
  HEED_ASSIGN(std::byte * packed, model_->parameters().AllocatePacked(p, type));
  std::vector<float> read, ordered;
  const float* values = p->values;
  if (values == nullptr) {
    read.resize(static_cast<size_t>(p->elements));
    ordered.resize(read.size());
    HEED_TRY(tensor.Read(read.data()));
    FromFileOrder(order_, model_->config(), *p, read.data(), ordered.data());
    values = ordered.data();
  }
  const bool in_out = p->axes == "in out";
  PackFloats(type, p->K(), p->N(), values, in_out ? p->N() : 1, in_out ? 1 : p->K(), packed);
  return {};
}

Status ParameterLoader::AddTiedHead(const SourceTensor& tensor) {
  const Parameter& embedding = model_->parameters().all().front();
  AddUnused(tensor.name);
  head_place_ = tensor.place + ": " + tensor.name;
  if (tensor.shape != embedding.shape) {
    misfits_.push_back(fmt::format("{} of shape {} in place of {}", tensor.name,
                                   ShapeText(tensor.shape), ShapeText(embedding.shape)));
    return {};
  }
  head_.resize(static_cast<size_t>(embedding.elements));
  return tensor.Read(head_.data());
}

void ParameterLoader::AddSurplus(const std::string& name) {
  misfits_.push_back(fmt::format("{}, a tensor that the model does not have", name));
}

Status ParameterLoader::CheckTiedHead() const {
  const Parameter& embedding = model_->parameters().all().front();
  const int64_t width = embedding.shape[1];
  std::vector<float> row(static_cast<size_t>(width));
  bool same = true;
  for (int64_t r = 0; same && !head_.empty() && r < embedding.shape[0]; ++r) {
    const float* values = embedding.values + r * width;
    if (embedding.values == nullptr) {
      UnpackColumn(embedding.packed, r, row.data());
      values = row.data();
    }
    same = std::equal(values, values + width, &head_[r * width]);
  }
  if (same) return {};
  return Fail(ErrorKind::kFormat, head_place_, "a head that differs from " + embedding.name,
              "the same numbers, for they are tied",
              "set tie_word_embeddings (or tied) to false in config.json");
}

Result<LoadReport> ParameterLoader::Finish() {
  for (const Parameter& p : model_->parameters().all()) {
    if (filled_.contains(&p)) continue;
    misfits_.push_back(
        fmt::format("no tensor {} of shape {}", p.name, ShapeText(ShapeIn(order_, p))));
  }
  if (!misfits_.empty()) {
    return Fail(ErrorKind::kFormat, where_, Listed(misfits_), "", kTwoModels);
  }
  model_->parameters().UsePages(std::move(in_place_));
  HEED_TRY(CheckTiedHead());
  const auto shared = [](const std::set<BlockType>& types) {
    const bool plain = types.size() == 1 && SizeOf(*types.begin()).elements == 1;
    return plain ? *types.begin() : BlockType::kF32;
  };
  report_.type = shared(types_);
  report_.vector_type = shared(vector_types_);
  return std::move(report_);
}

Result<LoadReport> LoadNamed(const std::vector<SourceTensor>& tensors, Naming naming,
                             const FileOrder& order,
                             const std::function<bool(std::string_view name)>& is_unused,
                             const std::string& where, Weights weights, Gpt* model) {
  const Family family = model->config().family();
  std::map<std::string, Parameter*> parameters;
  for (Parameter& p : model->parameters().all()) {
    if (const auto name = NameIn(naming, family, p.name)) parameters[*name] = &p;
  }
  ParameterLoader loader(model, where, weights);
  loader.set_order(order);
  const std::optional<std::string> head = NameIn(naming, family, "lm_head.weight");
  for (const SourceTensor& tensor : tensors) {
    const auto found = parameters.find(tensor.name);
    if (found != parameters.end()) {
      HEED_TRY(loader.Fill(found->second, tensor));
    } else if (model->config().tied && tensor.name == head) {
      HEED_TRY(loader.AddTiedHead(tensor));
    } else if (is_unused(tensor.name)) {
      loader.AddUnused(tensor.name);
    } else {
      loader.AddSurplus(tensor.name);
    }
  }
  return loader.Finish();
}

Result<std::unique_ptr<Gpt>> EmptyModel(const ModelConfig& config, const Kernels& kernels,
                                        Weights weights) {
  return weights == Weights::kOwned ? Gpt::Create(config, kernels)
                                    : Gpt::CreateWithoutNumbers(config, kernels);
}

}  // namespace heed
