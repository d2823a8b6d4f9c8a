#include "lanes/copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megatronapp::rdma {

namespace {

#if defined(__x86_64__)
constexpr std::size_t kLeastByVectors = 4096;
constexpr std::size_t kAlignment = 32;
constexpr std::size_t kStride = 4 * kAlignment;

// Not memcpy: it may take `rep movsb`, which is five times slower on some processors for some distances of the two
// places within a page.
template <bool kStreams>
__attribute__((target("avx2"))) void copy_by_vectors(char* to, const char* from, std::size_t bytes) {
    const std::size_t head = (kAlignment - reinterpret_cast<std::uintptr_t>(to) % kAlignment) % kAlignment;
    std::memcpy(to, from, head);
    std::size_t i = head;
    for (; i + kStride <= bytes; i += kStride) {
        const auto* source = reinterpret_cast<const __m256i*>(from + i);
        auto* target = reinterpret_cast<__m256i*>(to + i);
        const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
        const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
        if constexpr (kStreams) {
            _mm256_stream_si256(target, a);
            _mm256_stream_si256(target + 1, b);
            _mm256_stream_si256(target + 2, c);
            _mm256_stream_si256(target + 3, d);
        } else {
            _mm256_store_si256(target, a);
            _mm256_store_si256(target + 1, b);
            _mm256_store_si256(target + 2, c);
            _mm256_store_si256(target + 3, d);
        }
    }
    if constexpr (kStreams) {
        _mm_sfence();
    }
    std::memcpy(to + i, from + i, bytes - i);
}

__attribute__((target("sse4.2"))) std::uint32_t crc_by_instruction(const char* data, std::size_t bytes) {
    std::uint64_t crc = 0xffffffff;
    std::size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        std::uint64_t word;
        std::memcpy(&word, data + i, sizeof word);
        crc = _mm_crc32_u64(crc, word);
    }
    auto rest = static_cast<std::uint32_t>(crc);
    for (; i < bytes; ++i) {
        rest = _mm_crc32_u8(rest, static_cast<unsigned char>(data[i]));
    }
    return ~rest;
}
#endif

std::uint32_t crc_by_bits(const char* data, std::size_t bytes) {
    std::uint32_t crc = 0xffffffff;
    for (std::size_t i = 0; i < bytes; ++i) {
        crc ^= static_cast<unsigned char>(data[i]);
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

}  // namespace

void copy(Kernel kernel, char* to, const char* from, std::size_t bytes) {
#if defined(__x86_64__)
    static const bool has_vectors = __builtin_cpu_supports("avx2");
    if (has_vectors && bytes >= kLeastByVectors) {
        return kernel == Kernel::kStreaming ? copy_by_vectors<true>(to, from, bytes)
                                            : copy_by_vectors<false>(to, from, bytes);
    }
#endif
    static_cast<void>(kernel);
    if (bytes != 0) {
        std::memcpy(to, from, bytes);
    }
}

std::uint32_t crc32c(const char* data, std::size_t bytes) {
#if defined(__x86_64__)
    static const bool has_instruction = __builtin_cpu_supports("sse4.2");
    if (has_instruction) {
        return crc_by_instruction(data, bytes);
    }
#endif
    return crc_by_bits(data, bytes);
}

}  // namespace megatronapp::rdma
