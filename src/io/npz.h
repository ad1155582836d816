// NumPy's files: one array (.npy, format 1 to 3) or a zip of them (.npz), stored or deflated, zip64
// included. Of any byte order and of C or Fortran order; object arrays (pickles), structured and
// complex ones are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "io/tensor_entry.h"

namespace heed {

class NpzFile {
 public:
  // Errors: kIo as MappedFile::Open, kFormat for every rule that the file breaks.
  static Result<NpzFile> Open(const std::string& path);
  // The same from memory that outlives the result; `where` is named in errors, and its last part
  // without ".npy" is the name of a .npy's array.
  static Result<NpzFile> Parse(std::span<const std::byte> bytes, std::string where);

  // Arrays of numbers, in the order of the zip's directory; `begin` counts into nothing.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const TensorEntry* Find(std::string_view name) const { return FindEntry(tensors_, name); }
  // Arrays of one string, by name, in UTF-8.
  const std::map<std::string, std::string>& strings() const { return strings_; }

  // Row-major. Errors (kFormat): no such array; a dtype that is not of the kind asked for.
  Result<std::vector<float>> Floats(std::string_view name) const;
  Result<std::vector<double>> Doubles(std::string_view name) const;
  Result<std::vector<int64_t>> Integers(std::string_view name) const;

 private:
  // Where the bytes of tensors_[i] are and how they lie.
  struct Storage {
    std::vector<std::byte> inflated;   // empty when they stand in the file
    std::span<const std::byte> bytes;  // in the file or in `inflated`
    bool big_endian = false;
    bool fortran_order = false;
  };

  NpzFile() = default;
  Status AddArray(std::string name, std::span<const std::byte> npy,
                  std::vector<std::byte> inflated);
  Status ReadZip(std::span<const std::byte> zip);
  // Calls use(entry, its row-major little-endian bytes).
  template <class Use>
  auto WithBytes(std::string_view name, Use use) const
      -> decltype(use(std::declval<const TensorEntry&>(), std::span<const std::byte>()));

  std::string where_;
  MappedFile file_;
  std::vector<TensorEntry> tensors_;
  std::vector<Storage> storage_;
  std::map<std::string, std::string> strings_;
};

}  // namespace heed
