// What two cores can do: the distance between them, and a ring in shared memory with nothing around it. Compiled by the
// benchmark, called through ctypes.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr std::size_t kSlots = 16;
constexpr std::size_t kMostChunkBytes = 256 << 10;
constexpr int kSpins = 200000;  // then others may run: the peer may need this very core

struct Line {
    alignas(64) std::atomic<std::uint64_t> value;
};

struct Ring {
    Line head, tail;
    alignas(4096) char data[kSlots][kMostChunkBytes];
};

struct Shared {
    Line turn[2];
    Line ready[2];
    Ring rings[2];  // by sender
};

Shared* shared = nullptr;
std::uint64_t turns = 0;
std::uint64_t meetings = 0;

template <typename Condition>
void spin_until(Condition condition) {
    for (int spins = 0; !condition(); ++spins) {
        if (spins > kSpins) {
            std::this_thread::yield();
        } else {
            _mm_pause();
        }
    }
}

double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Not memcpy, which is slow for some distances of the two places within a page.
template <bool kStreams>
__attribute__((target("avx2"))) void copy(char* to, const char* from, std::size_t bytes) {
    std::size_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        const auto* source = reinterpret_cast<const __m256i*>(from + i);
        auto* target = reinterpret_cast<__m256i*>(to + i);
        const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
        if constexpr (kStreams) {
            _mm256_stream_si256(target, a);
            _mm256_stream_si256(target + 1, b);
        } else {
            _mm256_storeu_si256(target, a);
            _mm256_storeu_si256(target + 1, b);
        }
    }
    if constexpr (kStreams) {
        _mm_sfence();
    }
    std::memcpy(to + i, from + i, bytes - i);
}

enum class Reader { kSpins, kSleeps };

void futex(std::atomic<std::uint64_t>& word, int operation, std::uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

void push(Ring& ring, const char* from, std::size_t bytes, bool streaming, Reader reader = Reader::kSpins) {
    const std::size_t chunk = streaming ? kMostChunkBytes : 64 << 10;
    for (std::size_t done = 0; done < bytes; done += chunk) {
        const std::uint64_t head = ring.head.value.load(std::memory_order_relaxed);
        spin_until([&] { return head - ring.tail.value.load(std::memory_order_acquire) < kSlots; });
        const std::size_t piece = bytes - done < chunk ? bytes - done : chunk;
        char* slot = ring.data[head % kSlots];
        streaming ? copy<true>(slot, from + done, piece) : copy<false>(slot, from + done, piece);
        ring.head.value.store(head + 1, std::memory_order_release);
        if (reader == Reader::kSleeps) {
            futex(ring.head.value, FUTEX_WAKE, 1);
        }
    }
}

void await_head(Ring& ring, std::uint64_t tail, Reader reader) {
    if (reader == Reader::kSpins) {
        return spin_until([&] { return ring.head.value.load(std::memory_order_acquire) != tail; });
    }
    while (ring.head.value.load(std::memory_order_acquire) == tail) {
        futex(ring.head.value, FUTEX_WAIT, static_cast<std::uint32_t>(tail));
    }
}

void pull(Ring& ring, char* to, std::size_t bytes, bool streaming, Reader reader = Reader::kSpins) {
    const std::size_t chunk = streaming ? kMostChunkBytes : 64 << 10;
    for (std::size_t done = 0; done < bytes; done += chunk) {
        const std::uint64_t tail = ring.tail.value.load(std::memory_order_relaxed);
        await_head(ring, tail, reader);
        const std::size_t piece = bytes - done < chunk ? bytes - done : chunk;
        copy<false>(to + done, ring.data[tail % kSlots], piece);
        ring.tail.value.store(tail + 1, std::memory_order_release);
    }
}

}  // namespace

extern "C" {

std::size_t shared_bytes() { return sizeof(Shared); }

int open_shared(int descriptor) {
    void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    shared = static_cast<Shared*>(mapped);
    return mapped == MAP_FAILED ? -1 : 0;
}

// Both ranks call it; they leave it together.
void meet(int rank) {
    ++meetings;
    shared->ready[rank].value.store(meetings);
    spin_until([&] { return shared->ready[1 - rank].value.load() >= meetings; });
}

// Both ranks call it. One-way nanoseconds of a cache line.
double distance_ns(int rank, int rounds) {
    meet(rank);
    const double start = now_seconds();
    for (int i = 0; i < rounds; ++i) {
        ++turns;
        if (rank == 0) {
            shared->turn[0].value.store(turns, std::memory_order_release);
        }
        spin_until([&] { return shared->turn[1 - rank].value.load(std::memory_order_acquire) == turns; });
        if (rank == 1) {
            shared->turn[1].value.store(turns, std::memory_order_release);
        }
    }
    return (now_seconds() - start) / rounds / 2 * 1e9;
}

// Rank 0 sends `count` messages, round robin over `window` buffers. Seconds a message.
double one_way(int rank, char* buffers, std::size_t bytes, int window, int count, int streaming) {
    char answer = 0;
    meet(rank);
    const double start = now_seconds();
    for (int i = 0; i < count; ++i) {
        char* buffer = buffers + static_cast<std::size_t>(i % window) * bytes;
        rank == 0 ? push(shared->rings[0], buffer, bytes, streaming) : pull(shared->rings[0], buffer, bytes, streaming);
    }
    rank == 0 ? pull(shared->rings[1], &answer, 1, false) : push(shared->rings[1], &answer, 1, false);
    return (now_seconds() - start) / count;
}

// Seconds of half a round trip between two that spin, or that sleep until they are woken.
double half_round_trip(int rank, char* buffer, std::size_t bytes, int count, int asleep) {
    const Reader reader = asleep != 0 ? Reader::kSleeps : Reader::kSpins;
    meet(rank);
    const double start = now_seconds();
    for (int i = 0; i < count; ++i) {
        for (int turn = 0; turn < 2; ++turn) {
            turn == rank ? push(shared->rings[turn], buffer, bytes, false, reader)
                         : pull(shared->rings[turn], buffer, bytes, false, reader);
        }
    }
    return (now_seconds() - start) / count / 2;
}
}
