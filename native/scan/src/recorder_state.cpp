// What a recorder tells beside spans: the rank's state, and the agent's word.
#include "recorder.h"

namespace megatronapp::scan {

namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr int kControlTries = 100;
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
