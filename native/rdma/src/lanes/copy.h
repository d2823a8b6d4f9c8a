// Copies into shared memory, and which of the two kinds is faster now.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace megatronapp::rdma {

// Cached stores win when sender and receiver share a cache; streaming stores win when they don't, as cached ones then
// fetch every line from the receiver's cache first.
enum class Kernel : std::uint8_t { kCached, kStreaming };

void copy(Kernel kernel, char* to, const char* from, std::size_t bytes);

// CRC-32C (Castagnoli), as in RFC 3720.
std::uint32_t crc32c(const char* data, std::size_t bytes);

constexpr std::size_t kCachedChunkBytes = 64 << 10;
constexpr std::size_t kStreamingChunkBytes = 256 << 10;

inline std::size_t chunk_bytes(Kernel kernel) {
    return kernel == Kernel::kCached ? kCachedChunkBytes : kStreamingChunkBytes;
}

// Chunks from this size on tell what they cost.
constexpr std::size_t kTimedBytes = kCachedChunkBytes;

// Schedulers move ranks between cores, so the distance is probed by the traffic itself: mostly the kernel that moved
// the last chunks faster, now and then the other.
class KernelChoice {
public:
    Kernel next();
    // Both copies of a chunk: they go on at the same time, so the longer one counts.
    void record(Kernel kernel, std::size_t bytes, std::int64_t write_ns, std::int64_t read_ns);
    Kernel faster() const { return ns_per_byte_[0] <= ns_per_byte_[1] ? Kernel::kCached : Kernel::kStreaming; }

private:
    static constexpr std::uint32_t kTryOtherEvery = 64;
    static constexpr double kWeight = 0.125;  // of the newest chunk

    std::array<double, 2> ns_per_byte_{};  // 0: not known yet
    std::uint32_t chunks_ = 0;
};

}  // namespace megatronapp::rdma
