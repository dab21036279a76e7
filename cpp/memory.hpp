#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace log1pnmf::LOG1PNMF_ISA {

// Zeroed doubles on a cache line boundary.
class Buffer {
 public:
  explicit Buffer(std::int64_t count = 0) : data_(allocate(count)) {}
  ~Buffer() { ::operator delete(data_, std::align_val_t(64)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator double*() const { return data_; }
  friend void swap(Buffer& a, Buffer& b) noexcept { std::swap(a.data_, b.data_); }

 private:
  static double* allocate(std::int64_t count) {
    const auto bytes = sizeof(double) * static_cast<std::size_t>(count + 8);
    void* p = ::operator new(bytes, std::align_val_t(64));
    std::memset(p, 0, bytes);
    return static_cast<double*>(p);
  }
  double* data_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
