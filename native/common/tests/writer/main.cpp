// A writer of a segment, for a reader in another process.
//
//     writer ring RING_BYTES RECORDS SEED    records of random sizes; word i of record n is n * 1000003 + i
//     writer lock UPDATES                    the state over and over, all of its fields the same number
//
// Prints the segment's path, begins at a line of input, prints "done", and ends at the input's end.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "common/ring.h"
#include "common/segment.h"

using namespace megatronapp::common;

namespace {

void write_records(Segment& segment, std::size_t ring_bytes, long records, unsigned seed) {
    std::mt19937 random(seed);
    RingWriter ring(segment.ring(), segment.ring_data(), ring_bytes);
    std::uniform_int_distribution<std::size_t> words(0, ring.most_payload() / 8);
    for (long number = 1; number <= records; ++number) {
        const std::size_t count = words(random);
        char* payload = ring.claim(RecordKind::kRows, 8 * count);
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t word = static_cast<std::uint64_t>(number) * 1000003 + i;
            std::memcpy(payload + 8 * i, &word, sizeof word);
        }
        ring.publish();
        if (random() % 64 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        }
    }
}

void write_state(Segment& segment, std::uint64_t updates) {
    State& state = segment.state();
    for (std::uint64_t number = 1; number <= updates; ++number) {
        write_locked(state.sequence, [&] {
            state.step.store(static_cast<std::int64_t>(number), std::memory_order_relaxed);
            state.phase.store(static_cast<std::uint32_t>(number), std::memory_order_relaxed);
            state.closing.store(static_cast<std::uint32_t>(number), std::memory_order_relaxed);
            for (auto* field : {&state.lost, &state.allocated_bytes, &state.reserved_bytes, &state.peak_bytes,
                                &state.total_bytes}) {
                field->store(number, std::memory_order_relaxed);
            }
        });
        if (number % 512 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
}

}  // namespace

int main(int count, char** arguments) {
    const std::string mode = arguments[1];
    const std::size_t ring_bytes = mode == "ring" ? std::strtoul(arguments[2], nullptr, 10) : 4096;
    Segment segment(4, ring_bytes, static_cast<std::uint32_t>(getpid()));
    std::printf("/proc/%d/fd/%d\n", getpid(), segment.descriptor());
    std::fflush(stdout);
    std::getchar();
    if (mode == "ring" && count == 5) {
        write_records(segment, ring_bytes, std::atol(arguments[3]), static_cast<unsigned>(std::atol(arguments[4])));
    } else {
        write_state(segment, std::strtoul(arguments[2], nullptr, 10));
    }
    std::printf("done\n");
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
}
