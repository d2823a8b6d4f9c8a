// Who looks for messages, and who sleeps.
#include "core/engine.h"

#include <algorithm>
#include <chrono>
#include <sys/epoll.h>
#include <unistd.h>

#include "api/clock.h"

namespace megatronapp::rdma {

namespace {

constexpr unsigned kLooksPerSocket = 128;  // memory is looked at each time, sockets beside it seldom
constexpr std::int64_t kTickNs = 100'000'000;
constexpr std::int64_t kOwnPauseNs = 2'000'000'000;  // longer between two ticks: this process itself was stopped
constexpr std::int64_t kGlanceNs = 5'000'000;  // a wait looks itself so often, for what nobody announces
constexpr int kEvents = 8;
constexpr int kSleepMilliseconds = 100;
constexpr int kPolledMilliseconds = 1;
constexpr std::int64_t kPolledSpinNs = 2'000'000;  // so long after the last movement only polling may find the next
constexpr int kPauses = 32;
constexpr auto kFirstAbsence = std::chrono::microseconds(100);
constexpr auto kLongestAbsence = std::chrono::microseconds(200);

void pause_briefly() {
    for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

}  // namespace

bool Engine::progress(bool sockets) {
    bool moved = ucx_ != nullptr && ucx_->progress();
    for (const auto& [rank, peer] : peers_) {
        moved |= peer->progress(sockets);
    }
    tick();
    if (moved) {
        moved_ns_ = now_ns();
    }
    return moved;
}

bool Engine::look() { return progress(++looks_ % kLooksPerSocket == 0); }

void Engine::tick() {
    const std::int64_t now = now_ns();
    if (now - ticked_ns_ < kTickNs) {
        return;
    }
    const bool was_stopped = ticked_ns_ != 0 && now - ticked_ns_ > kOwnPauseNs;
    ticked_ns_ = now;
    for (const auto& [rank, peer] : peers_) {
        peer->tick(now);
        if (was_stopped) {
            peer->heard_again();
        }
    }
}

// While nobody looks or soon will, peers that put something into memory must ring.
void Engine::begin_looking() {
    if (lookers_++ == 0) {
        for (const auto& [rank, peer] : peers_) {
            peer->set_sleeping(false);
        }
    }
}

// True when something came at the last moment.
bool Engine::end_looking() {
    if (--lookers_ > 0 || (napping_ && helpers_ == 0)) {
        return false;
    }
    for (const auto& [rank, peer] : peers_) {
        peer->set_sleeping(true);
    }
    return progress(false);
}

// Moves messages until `done` or the deadline; when there is nothing to do, leaves that to the progress thread. Whether
// done.
bool Engine::drive(
    std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const std::function<bool()>& done) {
    while (!done() && now_ns() < deadline_ns) {
        if (!help(lock, deadline_ns, done)) {
            const std::int64_t until_ns = std::min(deadline_ns, now_ns() + kGlanceNs);
            ended_.wait_for(lock, std::chrono::nanoseconds(until_ns - now_ns()), done);
        }
    }
    return done();
}

// As long as there is something to do, and a moment longer. Whether done.
bool Engine::help(
    std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const std::function<bool()>& done) {
    ++helpers_;
    begin_looking();
    const std::int64_t spin_ns = seconds_to_ns(options_.spin_seconds);
    std::int64_t until_ns = now_ns() + spin_ns;
    while (!done()) {
        const bool moved = look();
        const std::int64_t now = now_ns();
        if (moved) {
            until_ns = now + spin_ns;
        }
        if (now >= std::min(until_ns, deadline_ns)) {
            break;
        }
        if (callers_.load(std::memory_order_relaxed) > 0) {
            lock.unlock();
            std::this_thread::yield();
            lock.lock();
        } else if (!moved) {
            pause_briefly();
        }
    }
    --helpers_;
    if (end_looking()) {  // there may be more, and nobody looks
        kick();
    }
    return done();
}

void Engine::run() {
    const std::int64_t spin_ns = seconds_to_ns(options_.spin_seconds);
    std::int64_t sleep_from = now_ns() + spin_ns;
    std::unique_lock<std::mutex> lock(mutex_);
    begin_looking();
    while (!stop_) {
        if (helpers_ > 0) {
            leave_to_helpers(lock);
            sleep_from = now_ns() + spin_ns;
        } else if (look()) {
            sleep_from = now_ns() + spin_ns;
        } else if (now_ns() >= sleep_from) {
            sleep(lock);
            sleep_from = now_ns() + spin_ns;
        }
        lock.unlock();
        pause_briefly();
        while (callers_.load(std::memory_order_relaxed) > 0) {
            std::this_thread::yield();
        }
        lock.lock();
    }
    end_looking();
}

// Looks from time to time whether they are gone, without the lock: to be told would cost each wait a system call.
void Engine::leave_to_helpers(std::unique_lock<std::mutex>& lock) {
    napping_ = true;
    end_looking();
    lock.unlock();
    for (auto pause = kFirstAbsence; helpers_ > 0 && !stop_; pause = std::min(2 * pause, kLongestAbsence)) {
        std::this_thread::sleep_for(pause);
    }
    lock.lock();
    napping_ = false;
    begin_looking();
}

void Engine::watch_outputs() {
    for (const auto& [rank, peer] : peers_) {
        if (peer->descriptor() >= 0 && output_watched_[rank] != peer->has_output()) {
            output_watched_[rank] = peer->has_output();
            watch(peer->descriptor(), peer->has_output(), EPOLL_CTL_MOD);
        }
    }
}

// Sleeps until a doorbell, a socket, a kick or the time.
void Engine::sleep(std::unique_lock<std::mutex>& lock) {
    const bool moved = end_looking() | progress(true);
    if (!moved && !stop_ && (ucx_ == nullptr || ucx_->arm())) {
        watch_outputs();
        const bool polled = std::any_of(
            peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second->polled(); });
        const bool lively = now_ns() - moved_ns_ < kPolledSpinNs;
        asleep_ = true;
        lock.unlock();
        epoll_event events[kEvents];
        epoll_wait(epoll_, events, kEvents, !polled ? kSleepMilliseconds : lively ? 0 : kPolledMilliseconds);
        lock.lock();
        asleep_ = false;
        std::uint64_t count;
        [[maybe_unused]] const auto got = read(wake_, &count, sizeof count);
        progress(true);
    }
    begin_looking();
}

// Wakes the progress thread.
void Engine::kick() {
    if (asleep_) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
    }
}

}  // namespace megatronapp::rdma
