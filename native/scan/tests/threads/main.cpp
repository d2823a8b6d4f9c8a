// A recorder under many threads at once, without an interpreter whose lock would keep them apart: for a sanitizer.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "recorder.h"

using namespace megatronapp::scan;

namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 100;
constexpr int kEach = 20'000;
constexpr int kFrames = 500;
constexpr std::size_t kFrameBytes = 100'000;
constexpr std::size_t kBulkBytes = 1 << 20;

void side_thread(Recorder& recorder, int thread) {
    const std::uint32_t track = recorder.frontiers().track(1, thread % 2, true);
    for (int i = 0; i < kEach; ++i) {
        recorder.add(1, i, i + 1, 0);
        const MarkId begin = recorder.mark();
        try {
            recorder.add_operation(1, begin, recorder.mark(), {1, thread, i, 8, 2, kNoMark, 5}, -1, -1);
        } catch (const std::invalid_argument&) {  // the step ended in between
        }
        recorder.complete_at(track, recorder.frontiers().enqueue(track, 1, 1, 5), recorder.mark());
        recorder.done(begin);
        recorder.innermost();
    }
}

void write_frames(Recorder& recorder, int thread) {
    const std::string payload(kFrameBytes, static_cast<char>('a' + thread));
    for (int i = 0; i < kFrames; ++i) {
        recorder.write_frame(std::string(static_cast<std::size_t>(thread), 'd'), payload);
    }
}

// Whether every frame has got a number, and each that is left is of one thread alone.
bool frames_whole(const Recorder& recorder) {
    using namespace megatronapp::common;
    struct stat about {};
    fstat(recorder.descriptor(), &about);
    void* memory =
        mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_SHARED, recorder.descriptor(), 0);
    const char* begin = static_cast<const char*>(memory);
    const auto& ring = *reinterpret_cast<const RingHeader*>(begin + reinterpret_cast<const Header*>(begin)->bulk);
    const char* data = reinterpret_cast<const char*>(&ring) + sizeof ring;
    RecordHeader record{};
    bool whole = true;
    for (std::uint64_t position = ring.tail; whole && position != ring.head; position += record.bytes) {
        const char* place = data + position % kBulkBytes;
        std::memcpy(&record, place, kFillingBytes);
        whole = record.bytes >= kFillingBytes && position + record.bytes <= ring.head;
        if (whole && record.kind == static_cast<std::uint16_t>(RecordKind::kFrame)) {
            std::memcpy(&record, place, sizeof record);
            const std::string payload(place + record.bytes - kFrameBytes, kFrameBytes);
            whole = payload.find_first_not_of(payload[0]) == std::string::npos;
        }
    }
    munmap(memory, static_cast<std::size_t>(about.st_size));
    return whole && record.number == kThreads * kFrames;
}

void training_thread(Recorder& recorder) {
    for (int step = 1; step <= kSteps; ++step) {
        recorder.set_step(step);
        recorder.control();
        for (int i = 0; i < kEach / kSteps; ++i) {
            recorder.context(i, 0);
            recorder.begin(0, kNoMark);
            recorder.end();
        }
        megatronapp::common::StepEnd end{};
        end.step = static_cast<std::uint64_t>(step);
        recorder.end_step(end);
    }
}

}  // namespace

int main() {
    Recorder recorder(std::string(2, '\0'), std::string(2, '\0'), nullptr, {}, 1 << 20, kBulkBytes);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&recorder, thread] { side_thread(recorder, thread); });
        threads.emplace_back([&recorder, thread] { write_frames(recorder, thread); });
    }
    training_thread(recorder);
    for (std::thread& thread : threads) {
        thread.join();
    }
    recorder.end_step({});
    const bool drained = recorder.close(30.0);
    const bool counted = recorder.marks() == kThreads * kEach * 5 + 2 * kEach;
    const bool whole = frames_whole(recorder);
    std::printf(
        "%s, %s, %s\n", drained ? "drained" : "not drained", counted ? "all marks counted" : "marks are missing",
        whole ? "frames whole" : "frames damaged");
    return drained && counted && whole ? 0 : 1;
}
