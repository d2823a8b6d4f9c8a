#include "core/engine.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include "api/clock.h"

namespace megatronapp::rdma {

namespace {

constexpr unsigned kLooksPerSocket = 128;  // memory is looked at each time, sockets beside it seldom
constexpr std::int64_t kTickNs = 100'000'000;
constexpr std::int64_t kOwnPauseNs = 2'000'000'000;  // longer between two ticks: this process itself was stopped
constexpr int kSleepMilliseconds = 100;
constexpr int kPolledMilliseconds = 1;
constexpr int kPauses = 32;
constexpr auto kFirstAbsence = std::chrono::microseconds(100);
constexpr auto kLongestAbsence = std::chrono::microseconds(800);

void pause_briefly() {
    for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

}  // namespace

// The engine's lock for a caller from outside; the progress thread makes room.
class Engine::Turn {
public:
    explicit Turn(Engine& engine) : engine_(engine) {
        engine_.callers_.fetch_add(1, std::memory_order_relaxed);
        lock_ = std::unique_lock<std::mutex>(engine_.mutex_);
        engine_.callers_.fetch_sub(1, std::memory_order_relaxed);
    }
    std::unique_lock<std::mutex>& lock() { return lock_; }

private:
    Engine& engine_;
    std::unique_lock<std::mutex> lock_;
};

Engine::Engine(const Options& options)
    : options_(options), process_(getpid()), epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE)) {
    if (epoll_ < 0 || wake_ < 0) {
        throw std::system_error(errno, std::generic_category(), "the engine's descriptors");
    }
    watch(wake_, false, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
    if (getpid() != process_) {
        thread_.detach();
        for (auto& [rank, peer] : peers_) {
            static_cast<void>(peer.release());
        }
        return;
    }
    abort("the engine is gone");
    stop_thread();
    peers_.clear();
    ::close(wake_);
    ::close(epoll_);
}

void Engine::watch(int descriptor, bool output, int how) {
    epoll_event event{};
    event.events = EPOLLIN | (output ? EPOLLOUT : 0u);
    event.data.fd = descriptor;
    epoll_ctl(epoll_, how, descriptor, &event);
}

void Engine::attach(int rank, const Link& link) {
    Turn turn(*this);
    const Limits limits{seconds_to_ns(options_.heartbeat_seconds), seconds_to_ns(options_.dead_after_seconds),
                        options_.checksum, options_.chunk_bytes == 0 ? SIZE_MAX : options_.chunk_bytes};
    auto peer = std::make_unique<Peer>(rank, link, limits, static_cast<Listener&>(*this), ucx_.get());
    watch(peer->descriptor(), false, EPOLL_CTL_ADD);
    peers_[rank] = std::move(peer);
    kick();
}

std::string Engine::open_ucx() {
    Turn turn(*this);
    if (ucx_ == nullptr) {
        ucx_ = std::make_unique<UcxWorker>();
        watch(ucx_->descriptor(), false, EPOLL_CTL_ADD);
    }
    return ucx_->address();
}

// ---- operations

OperationPtr Engine::post(Direction direction, int rank, std::uint64_t tag, const Descriptor& what, char* data,
                          void* stream, double deadline_seconds) {
    auto operation = std::make_shared<Operation>();
    operation->direction = direction;
    operation->peer = rank;
    operation->tag = tag;
    operation->what = what;
    operation->data = data;
    operation->stream = stream;
    operation->deadline_ns = now_ns() + seconds_to_ns(deadline_seconds);
    Turn turn(*this);
    const auto found = peers_.find(rank);
    if (found == peers_.end()) {
        throw std::out_of_range("not connected");
    }
    Peer& peer = *found->second;
    operation->id = next_id_++;
    if (aborted_ || peer.lost()) {
        operation->reason = aborted_ ? abort_reason_ : peer.reason();
        operation->done_ns = now_ns();
        operation->status.store(aborted_ ? Status::kAborted : Status::kPeerLost, std::memory_order_release);
        return operation;
    }
    peer.post(operation);
    if (operation->pending() && operation->matched) {
        peer.progress(false);
    }
    if (operation->pending() && (operation->matched || peer.has_output() || peer.polled())) {
        kick();
    }
    return operation;
}

void Engine::ended(const OperationPtr& operation) {
    completions_.add(operation);
    if (sleeping_helpers_ > 0) {
        kick();
    }
}

void Engine::gone(int descriptor) { epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr); }

bool Engine::wait(const OperationPtr& operation, double timeout_seconds) {
    Turn turn(*this);
    const bool ended = drive(
        turn.lock(), now_ns() + seconds_to_ns(timeout_seconds), [&] { return !operation->pending(); });
    if (ended) {
        completions_.forget(operation);
    }
    return ended;
}

bool Engine::wait_stream(const OperationPtr& operation, void* stream) {
    Turn turn(*this);
    const auto found = peers_.find(operation->peer);
    if (found == peers_.end() || found->second->cuda() == nullptr || operation->flag.host == nullptr) {
        return false;
    }
    found->second->cuda()->wait(operation->flag, stream);
    return true;
}

void Engine::cancel(const OperationPtr& operation) {
    Turn turn(*this);
    const auto found = peers_.find(operation->peer);
    if (found != peers_.end() && !found->second->lost()) {
        found->second->cancel(operation);
        kick();
    }
}

std::vector<OperationPtr> Engine::drain() {
    Turn turn(*this);
    progress(false);
    return completions_.drain();
}

std::map<int, std::string> Engine::failed() {
    Turn turn(*this);
    std::map<int, std::string> reasons;
    for (const auto& [rank, peer] : peers_) {
        if (peer->lost() && !peer->departed()) {
            reasons[rank] = peer->reason();
        }
    }
    return reasons;
}

// ---- the end

void Engine::abort(const std::string& reason) {
    Turn turn(*this);
    if (!aborted_) {
        aborted_ = true;
        abort_reason_ = reason;
        for (const auto& [rank, peer] : peers_) {
            peer->fail(Status::kAborted, reason);
        }
    }
    kick();
}

bool Engine::close(double timeout_seconds) {
    const std::int64_t deadline = now_ns() + seconds_to_ns(timeout_seconds);
    bool sent;
    {
        Turn turn(*this);
        const auto all = [this](auto holds) {
            return std::all_of(peers_.begin(), peers_.end(), [&](const auto& entry) { return holds(*entry.second); });
        };
        sent = drive(turn.lock(), deadline, [&] {
            return all([](const Peer& peer) { return peer.lost() || (!peer.sending() && !peer.has_output()); });
        });
        for (const auto& [rank, peer] : peers_) {
            if (!peer->lost()) {
                peer->say_goodbye();
            }
        }
        sent &= drive(turn.lock(), deadline, [&] { return all([](const Peer& p) { return p.answered_goodbye(); }); });
    }
    abort("the engine is closed");
    stop_thread();
    return sent;
}

void Engine::stop_thread() {
    {
        Turn turn(*this);
        stop_ = true;
        kick();
    }
    if (thread_.joinable()) {
        thread_.join();
    }
}

// ---- progress

bool Engine::progress(bool sockets) {
    bool moved = ucx_ != nullptr && ucx_->progress();
    for (const auto& [rank, peer] : peers_) {
        moved |= peer->progress(sockets);
    }
    tick();
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

// While nobody looks, peers that put something into memory must ring.
void Engine::begin_looking() {
    if (lookers_++ == 0) {
        for (const auto& [rank, peer] : peers_) {
            peer->set_sleeping(false);
        }
    }
}

// True when something came at the last moment.
bool Engine::end_looking() {
    if (--lookers_ > 0) {
        return false;
    }
    for (const auto& [rank, peer] : peers_) {
        peer->set_sleeping(true);
    }
    return progress(false);
}

// Moves messages until `done` or the deadline; sleeps when there is nothing to do. Whether done.
template <typename Predicate>
bool Engine::drive(std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, Predicate done) {
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
    end_looking();
    lock.unlock();
    for (auto pause = kFirstAbsence; helpers_ > 0 && !stop_; pause = std::min(2 * pause, kLongestAbsence)) {
        std::this_thread::sleep_for(pause);
    }
    lock.lock();
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
        const int limit = polled ? kPolledMilliseconds : kSleepMilliseconds;
        ++sleepers_;
        sleeping_helpers_ += helpers;
        lock.unlock();
        epoll_event events[8];
        epoll_wait(epoll_, events, 8, static_cast<int>(std::min<std::int64_t>(left, limit)));
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
