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
    if (--lookers_ > 0 || napping_) {
        return false;
    }
    for (const auto& [rank, peer] : peers_) {
        peer->set_sleeping(true);
    }
    return progress(false);
}

// Moves messages until `done` or the deadline; sleeps when there is nothing to do. Whether done.
bool Engine::drive(
    std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const std::function<bool()>& done) {
    if (done()) {
        return true;
    }
    ++helpers_;
    begin_looking();
    const std::int64_t spin_ns = seconds_to_ns(options_.spin_seconds);
    std::int64_t sleep_from = now_ns() + spin_ns;
    while (!done()) {
        if (look()) {
            sleep_from = now_ns() + spin_ns;
            continue;
        }
        const std::int64_t now = now_ns();
        if (now >= deadline_ns) {
            break;
        }
        if (now >= sleep_from) {
            sleep(lock, deadline_ns, 1);
        } else if (callers_.load(std::memory_order_relaxed) > 0) {
            lock.unlock();
            std::this_thread::yield();
            lock.lock();
        } else {
            pause_briefly();
        }
    }
    end_looking();
    --helpers_;
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
            sleep(lock, INT64_MAX, 0);
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
void Engine::sleep(std::unique_lock<std::mutex>& lock, std::int64_t until_ns, int helpers) {
    const bool moved = end_looking() | progress(true);
    if (!moved && !stop_ && (ucx_ == nullptr || ucx_->arm())) {
        watch_outputs();
        const bool polled = std::any_of(
            peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second->polled(); });
        const std::int64_t left = std::max<std::int64_t>(until_ns - now_ns(), 0) / 1'000'000 + 1;
        const bool lively = now_ns() - moved_ns_ < kPolledSpinNs;
        const int limit = !polled ? kSleepMilliseconds : lively ? 0 : kPolledMilliseconds;
        ++sleepers_;
        sleeping_helpers_ += helpers;
        lock.unlock();
        epoll_event events[kEvents];
        epoll_wait(epoll_, events, kEvents, static_cast<int>(std::min<std::int64_t>(left, limit)));
        lock.lock();
        --sleepers_;
        sleeping_helpers_ -= helpers;
        std::uint64_t count;
        if (read(wake_, &count, sizeof count) > 0) {
            --kicks_;
        }
        progress(true);
    }
    begin_looking();
}

// Wakes every sleeper, once.
void Engine::kick() {
    if (sleepers_ > kicks_) {
        const auto more = static_cast<std::uint64_t>(sleepers_ - kicks_);
        [[maybe_unused]] const auto written = write(wake_, &more, sizeof more);
        kicks_ = sleepers_;
    }
}

}  // namespace megatronapp::rdma
