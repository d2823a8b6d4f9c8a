// What KernelChoice prefers, where chunks cost what the command line says.
//
//     choice NOISE (CHUNKS CACHED_NS STREAMING_NS)...
//
// NOISE is the share of chunks that are interrupted, and take 20 times as long. In each phase a chunk of 64 KiB costs what
// is said of the two kinds. Prints the share of bytes that each phase moved by streaming stores.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>

#include "lanes/choice.h"

using namespace megatronapp::rdma;

int main(int count, char** arguments) {
    std::mt19937 random(1);
    const double noise = std::atof(arguments[1]);
    KernelChoice choice;
    struct Moved {
        Kernel kernel;
        std::size_t bytes;
        double ns;
    };
    std::deque<Moved> on_the_way;  // a cost is known when its slot is used again
    for (int phase = 2; phase + 2 < count; phase += 3) {
        const long chunks = std::atol(arguments[phase]);
        const double ns[] = {std::atof(arguments[phase + 1]), std::atof(arguments[phase + 2])};
        double bytes[2] = {};
        for (long i = 0; i < chunks; ++i) {
            if (on_the_way.size() == 16) {
                const Moved& ended = on_the_way.front();
                choice.record(ended.kernel, ended.bytes, static_cast<std::int64_t>(ended.ns), 1);
                on_the_way.pop_front();
            }
            const Kernel kernel = choice.next();
            const std::size_t size = choice.chunk_bytes(kernel);
            const bool interrupted = std::uniform_real_distribution<>()(random) < noise;
            const double jitter = std::normal_distribution<>(1.0, 0.1)(random);
            const double each = ns[static_cast<int>(kernel)] * static_cast<double>(size) / kCachedChunkBytes;
            on_the_way.push_back({kernel, size, each * jitter * (interrupted ? 20 : 1)});
            bytes[static_cast<int>(kernel)] += static_cast<double>(size);
        }
        std::printf("%.4f\n", bytes[1] / (bytes[0] + bytes[1]));
    }
}
