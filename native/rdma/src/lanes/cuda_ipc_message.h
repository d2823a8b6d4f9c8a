// What both sides of the cuda_ipc lane agree on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api/operation.h"
#include "drivers/cuda.h"

namespace megatronapp::rdma {

// A message from this size on comes in two pieces: the first lands while the second, a small one, comes.
constexpr std::size_t kTwoPiecesBytes = 32 << 20;
constexpr std::size_t kSecondPiece = 8;  // so many times smaller than the message: the first then lands in about its time

// What the receiver's lane tells the sender's.
struct Target {
    std::uint64_t chunk;
    std::uint64_t offset;
    std::uint64_t stream;
    std::uint32_t slot;
    std::uint32_t value;
};
static_assert(sizeof(Target) <= kLaneBytes);

// The same on both sides.
struct Pieces {
    explicit Pieces(std::size_t bytes)
        : count(bytes < kTwoPiecesBytes ? 1 : 2), total(bytes), second((bytes - bytes / kSecondPiece) / 4096 * 4096) {}
    std::size_t offset(std::uint32_t i) const { return i == 0 ? 0 : second; }
    std::size_t length(std::uint32_t i) const { return (i + 1 == count ? total : second) - offset(i); }

    std::uint32_t count;
    std::size_t total, second;
};

inline CudaAddress address_of(const Operation& operation) { return reinterpret_cast<CudaAddress>(operation.data); }

inline CudaStreamWrite writing(const Flag& flag) {
    CudaStreamWrite write;
    write.address = flag.device;
    write.value = flag.value;
    return write;
}

}  // namespace megatronapp::rdma
