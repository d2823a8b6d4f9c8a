#include "core/engine.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include "common/clock.h"

namespace megatronapp::rdma {

namespace {

constexpr std::int64_t kSettleNs = 1'000'000'000;

}  // namespace

// The engine's lock for a caller from outside; the progress thread makes room.
class Engine::Turn {
public:
    explicit Turn(Engine& engine) : truce_(engine.gpu_.load(std::memory_order_relaxed)), lock_(engine.mutex_, std::defer_lock) {
        engine.callers_.fetch_add(1, std::memory_order_relaxed);
        take(lock_);
        engine.callers_.fetch_sub(1, std::memory_order_relaxed);
    }
    std::unique_lock<std::mutex>& lock() { return lock_; }

private:
    CaptureTruce truce_;
    std::unique_lock<std::mutex> lock_;
};

Engine::Engine(const Options& options)
    : options_(options), process_(getpid()), epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (epoll_ < 0 || wake_ < 0) {
        throw std::system_error(errno, std::generic_category(), "the engine's descriptors");
    }
    watch(wake_, false, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
}

bool Engine::forked() const { return getpid() != process_; }

Engine::~Engine() {
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
    const Limits limits{common::seconds_to_ns(options_.heartbeat_seconds),
                        common::seconds_to_ns(options_.dead_after_seconds),
                        options_.checksum, options_.chunk_bytes == 0 ? SIZE_MAX : options_.chunk_bytes,
                        options_.open_rounds, options_.in_flight_bytes};
    Link complete = link;
    complete.pool_bytes = divide_pool(link.cuda_ipc ? 1 : 0);
    auto peer = std::make_unique<Peer>(rank, complete, limits, static_cast<Listener&>(*this), ucx_.get(), stream_waits_);
    watch(peer->descriptor(), false, EPOLL_CTL_ADD);
    peers_[rank] = std::move(peer);
    gpu_ = gpu_ || link.gpu;
    kick();
}

// Each lane's share of the memory to receive into, with that many more lanes.
std::size_t Engine::divide_pool(std::size_t more_lanes) {
    std::size_t lanes = more_lanes;
    for (const auto& [rank, peer] : peers_) {
        lanes += peer->cuda() != nullptr;
    }
    const std::size_t share = options_.receive_pool_bytes / std::max<std::size_t>(lanes, 1);
    for (const auto& [rank, peer] : peers_) {
        if (peer->cuda() != nullptr) {
            peer->cuda()->set_pool_limit(share);
        }
    }
    return share;
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

void Engine::post(const OperationPtr& operation, double deadline_seconds) {
    operation->deadline_ns = common::now_ns() + common::seconds_to_ns(deadline_seconds);
    refuse_capture(*operation, operation->stream);
    Turn turn(*this);
    const auto found = peers_.find(operation->peer);
    if (found == peers_.end()) {
        throw std::out_of_range("not connected");
    }
    Peer& peer = *found->second;
    if (operation->direction == Direction::kSend) {
        peer.read_readies();
    }
    operation->id = next_id_++;
    if (aborted_ || peer.lost()) {
        operation->reason = aborted_ ? abort_reason_ : peer.reason();
        operation->done_ns = common::now_ns();
        operation->status.store(aborted_ ? Status::kAborted : Status::kPeerLost, std::memory_order_release);
        return;
    }
    peer.post(operation);
    if (operation->pending() && operation->matched) {
        peer.progress(false);
    }
    if (operation->pending() && (operation->matched || peer.has_output() || peer.polled())) {
        kick();
    }
}

void Engine::ended(const OperationPtr& operation) {
    ++ended_count_;
    completions_.add(operation);
    ended_.notify_all();
    wake_helper();
}

void Engine::wake() {
    ended_.notify_all();
    wake_helper();
}

void Engine::gone(int descriptor) { epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr); }

bool Engine::wait(const OperationPtr& operation, double timeout_seconds) {
    Turn turn(*this);
    const bool ended = drive(
        turn.lock(), common::now_ns() + common::seconds_to_ns(timeout_seconds), [&] { return !operation->pending(); });
    if (ended) {
        completions_.forget(operation);
    }
    return ended;
}

std::optional<std::size_t> Engine::wait_any(const std::vector<OperationPtr>& operations, double timeout_seconds) {
    Turn turn(*this);
    std::optional<std::size_t> first;
    std::uint64_t seen = ended_count_ - 1;
    drive(turn.lock(), common::now_ns() + common::seconds_to_ns(timeout_seconds), [&] {
        const bool news = seen != ended_count_;
        seen = ended_count_;
        for (std::size_t i = 0; news && i < operations.size(); ++i) {
            const Operation& each = *operations[i];
            if (!each.pending() && (!first || each.done_ns < operations[*first]->done_ns)) {
                first = i;
            }
        }
        return first.has_value();
    });
    if (first) {
        completions_.forget(operations[*first]);
    }
    return first;
}

// What is captured would be replayed; a message is matched once.
void Engine::refuse_capture(const Operation& operation, void* stream) const {
    if (operation.what.memory == Memory::kCuda && is_captured(stream)) {
        throw std::runtime_error("its stream is being captured into a CUDA graph, and a message can't be replayed: "
                                 "exchange messages between the replays of graphs");
    }
}

bool Engine::wait_stream(const OperationPtr& operation, void* stream) {
    if (operation->what.memory == Memory::kHost) {
        return false;
    }
    refuse_capture(*operation, stream);
    Turn turn(*this);
    const auto found = peers_.find(operation->peer);
    if (operation->pending() && found != peers_.end()) {
        found->second->follow(operation, stream);
        kick();
    }
    return true;
}

bool Engine::flush(double timeout_seconds) {
    Turn turn(*this);
    return drive(turn.lock(), common::now_ns() + common::seconds_to_ns(timeout_seconds), [this] {
        return std::none_of(
            peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second->holds_back(); });
    });
}

std::optional<bool> Engine::cancel(const OperationPtr& operation, double timeout_seconds) {
    Turn turn(*this);
    const auto found = peers_.find(operation->peer);
    if (found != peers_.end() && !found->second->lost()) {
        found->second->cancel(operation);
        kick();
    }
    const bool known = drive(turn.lock(), common::now_ns() + common::seconds_to_ns(timeout_seconds), [&] {
        return !operation->pending() || operation->cancel == Cancel::kTooLate;
    });
    if (!known) {
        return std::nullopt;
    }
    return operation->status.load(std::memory_order_acquire) == Status::kCancelled;
}

std::vector<PendingSend> Engine::probe(int peer, std::uint64_t mask, std::uint64_t value, double timeout_seconds) {
    Turn turn(*this);
    progress(false);
    std::vector<PendingSend> found;
    drive(turn.lock(), common::now_ns() + common::seconds_to_ns(timeout_seconds), [&] {
        found.clear();
        for (const auto& [rank, each] : peers_) {
            if (peer < 0 || peer == rank) {
                each->add_pending_sends(found, mask, value);
            }
        }
        return !found.empty();
    });
    std::sort(found.begin(), found.end(), [](const PendingSend& a, const PendingSend& b) { return a.since_ns < b.since_ns; });
    return found;
}

std::vector<OperationPtr> Engine::drain() {
    Turn turn(*this);
    progress(false);
    return completions_.drain();
}

int Engine::descriptor() {
    Turn turn(*this);
    return completions_.announce();
}

std::map<int, std::uint64_t> Engine::in_flight() {
    Turn turn(*this);
    std::map<int, std::uint64_t> bytes;
    for (const auto& [rank, peer] : peers_) {
        bytes[rank] = peer->in_flight_bytes();
    }
    return bytes;
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
    const std::int64_t deadline = common::now_ns() + common::seconds_to_ns(timeout_seconds);
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
                peer->send_close();
            }
        }
        sent &= drive(turn.lock(), deadline, [&] { return all([](const Peer& p) { return p.close_acked(); }); });
    }
    abort("the engine is closed");
    stop_thread();
    wait_for_gpu();
    Turn turn(*this);
    peers_.clear();
    ucx_.reset();  // no network card writes into a buffer any more
    return sent;
}

// Its streams were let go, so that it is soon through, unless other work of the program holds them up.
void Engine::wait_for_gpu() {
    const std::int64_t deadline = common::now_ns() + kSettleNs;
    for (bool settled = false; !settled && common::now_ns() < deadline;) {
        Turn turn(*this);
        settled = true;
        for (const auto& [rank, peer] : peers_) {
            settled &= peer->settled();
        }
        if (!settled) {
            turn.lock().unlock();
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    }
}

void Engine::stop_thread() {
    {
        Turn turn(*this);
        stop_ = true;
        relieved_.notify_all();
        kick();
    }
    if (thread_.joinable()) {
        thread_.join();
    }
}

}  // namespace megatronapp::rdma
