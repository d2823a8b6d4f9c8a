// What a recorder tells beside spans: the rank's state, and the agent's word.
#include "recorder.h"

#include <algorithm>
#include <map>

namespace megatronapp::scan {

namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr int kControlTries = 100;
// Polls without a new mark before the device is asked, and from then to the next time: a second. While the training thread
// records nobody asks.
constexpr int kPolls = 10;
constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

template <typename Write>
void Recorder::write_state(Write write) {
    const Lock lock(mutex_);
    common::write_locked(state_.sequence, write);
}

void Recorder::set_step(std::int64_t step) {
    write_state([&] { state_.step.store(step, kRelaxed); });
}

void Recorder::set_phase(std::uint32_t phase) {
    write_state([&] { state_.phase.store(phase, kRelaxed); });
}

void Recorder::set_closing() {
    write_state([&] { state_.closing.store(1, kRelaxed); });
}

void Recorder::set_memory(std::uint64_t allocated, std::uint64_t reserved, std::uint64_t peak, std::uint64_t total) {
    write_state([&] {
        state_.allocated_bytes.store(allocated, kRelaxed);
        state_.reserved_bytes.store(reserved, kRelaxed);
        state_.peak_bytes.store(peak, kRelaxed);
        state_.total_bytes.store(total, kRelaxed);
    });
}

void Recorder::lose(std::uint64_t spans) {
    common::write_locked(state_.sequence, [&] { state_.lost.store(state_.lost.load(kRelaxed) + spans, kRelaxed); });
}

// ---- where the device stands

void Recorder::tell_unpassed_mark() {
    const std::uint64_t marks = state_.marks.load(kRelaxed);
    if (marks != seen_marks_) {
        seen_marks_ = marks;
        polls_ = 0;
        state_.unpassed_mark_ns.store(0, kRelaxed);
    } else if (++polls_ % kPolls == 0) {
        state_.unpassed_mark_ns.store(oldest_unpassed_mark_ns(), kRelaxed);
    }
}

// 0: the device has passed all marks. Chunks are given back on this thread, so that their events stay what they are.
std::int64_t Recorder::oldest_unpassed_mark_ns() {
    std::map<Stream, std::vector<Mark>> recorded;
    {
        const Lock lock(mutex_);
        std::vector<const Chunk*> chunks = sealed_;
        chunks.push_back(chunk_now_.get());
        for (const Chunk* chunk : chunks) {
            for (const Mark& mark : chunk->marks) {
                if (mark.event != nullptr) {
                    recorded[mark.stream].push_back(mark);
                }
            }
        }
    }
    std::int64_t oldest_ns = 0;
    for (const auto& [stream, marks] : recorded) {
        const auto unpassed = std::partition_point(
            marks.begin(), marks.end(), [this](const Mark& mark) { return cuda_->done(mark.event); });
        if (unpassed != marks.end() && (oldest_ns == 0 || unpassed->host_ns < oldest_ns)) {
            oldest_ns = unpassed->host_ns;
        }
    }
    return oldest_ns;
}

ControlWord Recorder::control() {
    const common::Control& published = segment_.control();
    ControlWord word{};
    const bool whole = common::read_locked(published.sequence, kControlTries, [&] {
        word = {published.serial.load(kRelaxed), published.enabled.load(kRelaxed), published.interval.load(kRelaxed),
                published.continuous.load(kRelaxed), published.granularity.load(kRelaxed)};
    });
    const Lock lock(mutex_);
    if (whole) {
        control_ = word;
    }
    return control_;
}

// ---- fork

void Recorder::before_fork() {
    bulk_mutex_.lock();
    mutex_.lock();
    frontiers_.mutex().lock();
    resolver_.mutex().lock();
}

void Recorder::after_fork_in_parent() {
    resolver_.mutex().unlock();
    frontiers_.mutex().unlock();
    mutex_.unlock();
    bulk_mutex_.unlock();
}

void Recorder::after_fork_in_child() {
    segment_.leave_to_parent();
    resolver_.abandon_thread();
    after_fork_in_parent();
}

}  // namespace megatronapp::scan
