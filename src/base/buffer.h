// Memory in one block, aligned to 64 bytes, and to 2 MiB with huge pages asked for when large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace heed {

// Whether `bytes` more fit beside all buffers that live, in the memory that the machine, or the
// control group of this process, had free when first asked. The system itself says no only when
// pages are touched, by ending a process.
bool MemoryHolds(double bytes);

class Buffer {
 public:
  Buffer() = default;
  // Zero-filled. Data() is null when the system has no such memory, as MemoryHolds tells it.
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  float* floats() { return reinterpret_cast<float*>(data_); }
  const float* floats() const { return reinterpret_cast<const float*>(data_); }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;    // as asked for
  size_t mapped_ = 0;  // as mapped
};

}  // namespace heed
