// A recorder under many threads at once, without an interpreter whose lock would keep them apart: for a sanitizer.
#include <cstdio>
#include <thread>
#include <vector>

#include "recorder.h"

using namespace megatronapp::scan;

namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 100;
constexpr int kEach = 20'000;

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
    Recorder recorder(std::string(2, '\0'), std::string(2, '\0'), nullptr, {}, 1 << 20);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&recorder, thread] { side_thread(recorder, thread); });
    }
    training_thread(recorder);
    for (std::thread& thread : threads) {
        thread.join();
    }
    recorder.end_step({});
    const bool drained = recorder.close(30.0);
    const bool counted = recorder.marks() == kThreads * kEach * 5 + 2 * kEach;
    std::printf("%s, %s\n", drained ? "drained" : "not drained", counted ? "all marks counted" : "marks are missing");
    return drained && counted ? 0 : 1;
}
