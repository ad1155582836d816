// A file of saved tensors with its settings, read for a diagnosis.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields_text.h"
#include "base/status.h"
#include "inspect/attention_settings.h"
#include "io/tensor_file.h"
#include "verify/diagnose/replay.h"

namespace heed {

class Dump {
 public:
  // Settings are the file's own, under those that were `given`. All must outlive this.
  Dump(const TensorFile& file, const std::string& where, const SettingTexts& given);

  const TensorFile& file() const { return file_; }
  const std::string& where() const { return where_; }
  bool Has(std::string_view name) const { return file_.Find(name) != nullptr; }

  // Numbers of a float tensor. Errors (kFormat) name it: absent, of integers, empty, and, unless
  // `any`, a number that is not finite.
  Result<Observed> Floats(const std::string& name, bool any = false);
  // The same, and of this shape; `axes` names the sizes in the error.
  Result<Observed> Floats(const std::string& name, const std::vector<int64_t>& shape,
                          const char* axes, bool any = false);
  // Error (kFormat): a number that is not finite, with its place.
  Status CheckFinite(const Observed& tensor) const;
  // Errors (kFormat): absent, of floats, or outside [least, most].
  Result<std::vector<int64_t>> Integers(const std::string& name, int64_t least, int64_t most) const;

  tl::unexpected<Error> ShapeError(const std::string& name, const std::string& expected,
                                   const std::string& hint = "") const;

  // The setting's value, or nothing when it is not stated. Error (kRequest): another type.
  template <class T>
  Result<std::optional<T>> Setting(const std::string& name) const {
    const auto found = texts_.find(name);
    if (found == texts_.end() || found->second == "null" || found->second == "None") {
      return std::optional<T>();
    }
    T value{};
    HEED_TRY(ParseField(where_ + ": " + name, found->second, &value));
    return std::optional<T>(value);
  }

  // The coarsest dtype that holds the numbers of all float tensors read so far.
  DType coarsest() const { return coarsest_; }

 private:
  const TensorFile& file_;
  const std::string& where_;
  SettingTexts texts_;
  DType coarsest_ = DType::kF64;
};

// A dump of one kind made ready for a search. Replays point into `c`, so it stays where it is.
template <class Case, class Choices>
struct Prepared {
  using Prepare = Status (*)(Dump*, Case*, Replayer<Choices>*, std::vector<Reading<Choices>>*);

  Prepared(const TensorFile& file, const std::string& where, const SettingTexts& given)
      : dump(file, where, given) {}
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  Status By(Prepare prepare) { return prepare(&dump, &c, &replayer, &conventions); }
  // Of its file as an example of the fault `id`: see ViewOf.
  static Result<std::optional<FaultView>> View(Prepare prepare, const TensorFile& file,
                                               const SettingTexts& given, const std::string& id) {
    const std::string where = "example";
    Prepared example(file, where, given);
    HEED_TRY(example.By(prepare));
    return ViewOf(example.replayer, example.conventions[0].choices, id);
  }

  Dump dump;
  Case c;
  Replayer<Choices> replayer;
  std::vector<Reading<Choices>> conventions;
};

}  // namespace heed
