// Who polls the lanes, and who sleeps.
//
// One thread at a time moves messages, under the engine's lock. It is one of
//   - the progress thread: always there, so that messages move while the program computes;
//   - a helper: a thread in wait(), which moves messages itself, as long as it waits. That saves the wake-up (some 10
//   us), so the progress thread steps aside while there are helpers, and dozes.
// Whoever polls spins for spin_seconds after the last movement, then sleeps in epoll, on the peers' sockets and
// `wake_`. A peer that writes into shared memory rings the doorbell (a byte on the socket) only while this rank has
// said, in that memory, that it sleeps. It says so before its last look at the memory (`end_polling`), so that no
// message falls between look and sleep. Of several helpers one sleeps in epoll; the others wait on `ended_` and are
// woken when it has found something or leaves.
#include "core/engine.h"

#include <algorithm>
#include <chrono>
#include <cerrno>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/pause.h"
#include "common/clock.h"
#include "core/pace.h"

namespace megatronapp::rdma {

namespace {

constexpr unsigned kPollsPerSocketPoll = 128;  // memory is looked at each time, sockets beside it seldom
constexpr std::int64_t kTickNs = 100'000'000;
constexpr std::int64_t kOwnPauseNs = 2'000'000'000;  // longer between two ticks: this process itself was stopped
constexpr std::int64_t kPollIntervalNs = 5'000'000;  // a wait looks itself so often, for what nobody announces
constexpr int kEvents = 8;
constexpr int kTries = 50;
constexpr std::int64_t kSleepNs = 100'000'000;
constexpr std::int64_t kPolledSpinNs = 2'000'000;  // so long after the last movement only polling may find the next
constexpr auto kNap = std::chrono::microseconds(200);  // of the progress thread, between two looks for helpers

// To the nanosecond where the kernel can.
void wait_for_events(int epoll, std::int64_t longest_ns) {
    epoll_event events[kEvents];
#ifdef SYS_epoll_pwait2
    constexpr std::int64_t kSecondNs = 1'000'000'000;
    const timespec longest{longest_ns / kSecondNs, longest_ns % kSecondNs};
    if (syscall(SYS_epoll_pwait2, epoll, events, kEvents, &longest, nullptr, 0) >= 0 || errno != ENOSYS) {
        return;
    }
#endif
    constexpr std::int64_t kMillisecondNs = 1'000'000;
    epoll_wait(epoll, events, kEvents, static_cast<int>((longest_ns + kMillisecondNs - 1) / kMillisecondNs));
}

}  // namespace

// Held for a moment only: to sleep until it is free would cost both threads more than that.
void Engine::take(std::unique_lock<std::mutex>& lock) {
    for (int i = 0; i < kTries; ++i) {
        if (lock.try_lock()) {
            return;
        }
        pause_briefly();
    }
    lock.lock();
}

bool Engine::progress(bool sockets) {
    bool moved = ucx_ != nullptr && ucx_->progress();
    for (const auto& [rank, peer] : peers_) {
        moved |= peer->progress(sockets);
    }
    tick();
    if (moved) {
        moved_ns_ = common::now_ns();
        wake_helper();
    }
    return moved;
}

bool Engine::poll() { return progress(++polls_ % kPollsPerSocketPoll == 0); }

void Engine::tick() {
    const std::int64_t now = common::now_ns();
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
void Engine::begin_polling() {
    if (pollers_++ == 0) {
        for (const auto& [rank, peer] : peers_) {
            peer->set_sleeping(false);
        }
    }
}

// True when something came at the last moment.
bool Engine::end_polling(bool somebody_polls_soon) {
    if (--pollers_ > 0 || somebody_polls_soon) {
        return false;
    }
    for (const auto& [rank, peer] : peers_) {
        peer->set_sleeping(true);
    }
    return progress(false);
}

// Moves messages until `done` or the deadline. When there is nothing to do, this thread itself sleeps where messages
// are announced: to be woken by the progress thread would cost a second change of threads. Whether done.
bool Engine::drive(
    std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const std::function<bool()>& done) {
    ++helpers_;
    while (!done() && common::now_ns() < deadline_ns) {
        ++helps_;
        if (spin(lock, deadline_ns, done)) {
            break;
        }
        const std::int64_t left_ns = deadline_ns - common::now_ns();
        if (asleep_ == Sleeper::kNobody) {
            sleep(lock, Sleeper::kHelper, left_ns);
        } else {
            if (asleep_ == Sleeper::kProgressThread) {
                kick();  // it leaves the place to this thread
            }
            const auto interval = std::chrono::nanoseconds(std::min(left_ns, kPollIntervalNs));
            ended_.wait_for(lock, interval, [&] { return done() || asleep_ == Sleeper::kNobody; });
        }
    }
    --helpers_;
    return done();
}

// As long as there is something to do, and a moment longer. Whether done.
bool Engine::spin(
    std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const std::function<bool()>& done) {
    begin_polling();
    const std::int64_t spin_ns = common::seconds_to_ns(options_.spin_seconds);
    std::int64_t until_ns = common::now_ns() + spin_ns;
    while (!done()) {
        const bool moved = poll();
        const std::int64_t now = common::now_ns();
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
    const bool somebody_polls_soon = dozing_ && asleep_ == Sleeper::kNobody;
    if (end_polling(somebody_polls_soon)) {  // there may be more, and nobody looks
        kick();
    }
    return done();
}

void Engine::run() {
    pthread_setname_np(pthread_self(), "rdma-progress");
    is_progress_thread = true;
    prctl(PR_SET_TIMERSLACK, 1);  // short sleeps are to be short
    const std::int64_t spin_ns = common::seconds_to_ns(options_.spin_seconds);
    std::int64_t sleep_from = common::now_ns() + spin_ns;
    std::unique_lock<std::mutex> lock(mutex_);
    begin_polling();
    std::optional<CaptureTruce> truce;
    while (!stop_) {
        if (gpu_ && !truce) {
            truce.emplace(true);
        }
        if (helpers_ > 0) {
            leave_to_helpers(lock);
            sleep_from = common::now_ns() + spin_ns;
        } else if (poll()) {
            sleep_from = common::now_ns() + spin_ns;
        } else if (common::now_ns() >= sleep_from) {
            end_polling(true);
            sleep(lock, Sleeper::kProgressThread, kSleepNs);
            begin_polling();
            sleep_from = common::now_ns() + spin_ns;
        }
        lock.unlock();
        pause_briefly();
        while (callers_.load(std::memory_order_relaxed) > 0) {
            std::this_thread::yield();
        }
        take(lock);
    }
    end_polling(false);
}

// Until nobody has waited for the length of a nap: who waits often is not disturbed, and need not tell when it is done.
// What only polling finds out is not left alone for so long.
void Engine::leave_to_helpers(std::unique_lock<std::mutex>& lock) {
    dozing_ = true;
    end_polling(asleep_ == Sleeper::kNobody);
    unsigned seen;
    do {
        seen = helps_;
        parked_ = asleep_ == Sleeper::kHelper;
        if (parked_) {
            relieved_.wait(lock, [this] { return asleep_ == Sleeper::kNobody || stop_; });
        } else {
            relieved_.wait_for(lock, kNap, [this] { return stop_.load(); });
        }
        parked_ = false;
    } while (!stop_ && (helpers_ > 0 || (helps_ != seen && !polled())));
    dozing_ = false;
    begin_polling();
}

void Engine::watch_outputs() {
    for (const auto& [rank, peer] : peers_) {
        if (peer->descriptor() >= 0 && output_watched_[rank] != peer->has_output()) {
            output_watched_[rank] = peer->has_output();
            watch(peer->descriptor(), peer->has_output(), EPOLL_CTL_MOD);
        }
    }
}

// Sleeps until a doorbell, a socket, a kick or the time. One thread at a time.
void Engine::sleep(std::unique_lock<std::mutex>& lock, Sleeper who, std::int64_t longest_ns) {
    begin_polling();
    const bool moved = end_polling(false) | progress(true);
    if (moved || stop_ || (ucx_ != nullptr && !ucx_->arm())) {
        return;
    }
    watch_outputs();
    const std::int64_t pause_ns = sleep_ns(longest_ns);
    asleep_ = who;
    lock.unlock();
    wait_for_events(epoll_, pause_ns);
    lock.lock();
    asleep_ = Sleeper::kNobody;
    if (parked_) {
        relieved_.notify_all();
    }
    ended_.notify_all();
    std::uint64_t count;
    [[maybe_unused]] const auto got = read(wake_, &count, sizeof count);
    progress(true);
}

std::int64_t Engine::sleep_ns(std::int64_t longest_ns) const {
    const std::int64_t longest = std::clamp<std::int64_t>(longest_ns, 0, kSleepNs);
    if (!polled()) {
        return longest;
    }
    const std::int64_t idle_ns = common::now_ns() - moved_ns_;
    return idle_ns < kPolledSpinNs ? 0 : std::min(longest, pause_between_looks_ns(idle_ns));
}

bool Engine::polled() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second->polled(); });
}

// There may be something to do for a thread that sleeps.
void Engine::kick() {
    if (asleep_ != Sleeper::kNobody) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
    }
}

// What it waits for may have come by another thread's hands.
void Engine::wake_helper() {
    if (asleep_ == Sleeper::kHelper) {
        kick();
    }
}

}  // namespace megatronapp::rdma
