// Copies into shared memory, of two kinds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megatronapp::rdma {

// Cached stores win when sender and receiver share a cache; streaming stores win when they don't, as cached ones then
// fetch every line from the receiver's cache first.
enum class Kernel : std::uint8_t { kCached, kStreaming };

void copy(Kernel kernel, char* to, const char* from, std::size_t bytes);

// CRC-32C (Castagnoli), as in RFC 3720.
std::uint32_t crc32c(const char* data, std::size_t bytes);

}  // namespace megatronapp::rdma
